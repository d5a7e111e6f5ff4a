"""Every command ends in one of five ways."""

import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from cli_tools import invoked, succeeded
from typer.testing import CliRunner

from hrm_host.command import Command, runnable


class BrokenGateError(ValueError):
    exit_status = 1


IMPORT_STOPPED = ImportError("initialization failed")  # as pybind11 raises it
IMPORT_STOPPED.__cause__ = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 0, ""),
        (BrokenGateError("bad_alloc: stop it"), 1, "hrm-try: bad_alloc: stop it\n"),
        (ValueError("4 is no 5: give a 5."), 2, "hrm-try: 4 is no 5: give a 5.\n"),
        (FileNotFoundError("no such file: x"), 2, "hrm-try: no such file: x\n"),
        (OSError(28, "No space left"), 3, "hrm-try: [Errno 28] No space left; make room there\n"),
        (
            OSError(122, "Quota exceeded"),
            3,
            "hrm-try: [Errno 122] Quota exceeded; make room there\n",
        ),
        (
            OSError(27, "File too large"),
            3,
            "hrm-try: [Errno 27] File too large; raise its limit of a file's size (ulimit -f)\n",
        ),
        (OSError(17, "In the way"), 2, "hrm-try: [Errno 17] In the way; choose another path\n"),
        (ArithmeticError("the loss is no number"), 3, "hrm-try: the loss is no number\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            3,
            "hrm-try: torch is not installed: run pip install 'hrm-edge[train]'.\n",
        ),
        (
            MemoryError(),
            3,
            "hrm-try: there is too little memory; "
            "raise its limit (ulimit -v, or the container's)\n",
        ),
        (
            RuntimeError("can't start new thread"),
            3,
            "hrm-try: can't start new thread; raise its limit of processes and threads "
            "(ulimit -u, TasksMax, --pids-limit)\n",
        ),
        (ImportError("libgomp.so.1: cannot open"), 3, "hrm-try: libgomp.so.1: cannot open\n"),
        (KeyboardInterrupt(), 130, "hrm-try: stopped\n"),
        (RuntimeError("SchemaError:\n  KeyboardInterrupt: "), 130, "hrm-try: stopped\n"),
        (IMPORT_STOPPED, 130, "hrm-try: stopped\n"),
    ],
)
def test_a_command_has_five_ends(error: BaseException | None, status: int, said: str):
    app = Command("hrm-try", extra="train", cannot=(ArithmeticError,))

    @app.command()
    def attempt() -> None:
        if error is not None:
            raise error

    ended = invoked(app)
    assert (ended.exit_code, ended.stderr) == (status, said)
    assert invoked(app, "--nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("", "None 1 "),
        ("small", "small 1 "),
        ("small --size 2", "small 2 "),
        ("--size 2 small", "small 2 "),
        ("--size 2", "None 2 "),
        ("status run --size 3", "None 1 run 3"),
    ],
)
def test_the_first_word_of_a_group_is_a_command_or_its_own_argument(words: str, printed: str):
    app = Command("hrm-try")

    @app.callback(invoke_without_command=True)
    def own(recipe: Annotated[str | None, typer.Argument()] = None, size: int = 1) -> None:
        print(recipe, size, end=" ")

    @app.command()
    def status(run: str, size: int = 0) -> None:
        print(run, size, end="")

    assert succeeded(app, *words.split()).stdout == printed
    assert invoked(app, "small", "other").exit_code == 2
    assert (
        "Usage: hrm-try status " in CliRunner().invoke(app, ["status"], prog_name="hrm-try").stderr
    )


def test_runnable_is_what_a_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in (".venv-serve/bin", "elsewhere"):
        script = tmp_path / folder / "hrm"
        script.parent.mkdir(parents=True)
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
    ours = tmp_path / ".venv-serve" / "bin"
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert runnable("hrm") == ".venv-serve/bin/hrm"
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert runnable("hrm") == ".venv-serve/bin/hrm"
    monkeypatch.setenv("PATH", str(ours))
    assert runnable("hrm") == "hrm"
    assert runnable("hrm-other", "--run", Path("my run")) == "hrm-other --run 'my run'"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert runnable("hrm") == str(ours / "hrm")
    (tmp_path / "elsewhere" / "hrm").unlink()
    (tmp_path / "elsewhere").rmdir()
    assert runnable("hrm") == str(ours / "hrm")
    monkeypatch.chdir(tmp_path)
