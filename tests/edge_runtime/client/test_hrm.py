"""Every command: version, help, completion, imports at the start, and `hrm NAME`."""

import re
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

import pytest
import typer.main
from cli_tools import invoked, ran
from files import text_of

from hrm_edge import commands

PYPROJECT = text_of("pyproject.toml")
Run = Callable[..., tuple[int, str, str]]
SCRIPTS = dict(re.findall(r'^(hrm-\w+) = "([\w.]+:\w+)"$', PYPROJECT, re.MULTILINE))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as its script does; return its status, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, entry: Callable[[], None] = commands.main) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", list(arguments))
        status = 0
        try:
            entry()
        except SystemExit as left:
            status = int(left.code or 0)
        return status, *capsys.readouterr()

    return run


def function_at(target: str) -> Any:
    module, name = target.split(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_print_versions(name: str, run: Run):
    _, out, _ = run(name, "--version", entry=function_at(SCRIPTS[name]))
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize(
    "arguments", ["solve 1 --patience 1e300", "data build sudoku --out x --train 1000000000000"]
)
def test_numbers_that_no_machine_holds_are_wrong_use(arguments: str, run: Run):
    status, _, error = run("hrm", *arguments.split())
    assert status == 2
    assert "Invalid value for" in error


DESKTOP = [name for name, entry in SCRIPTS.items() if entry == "hrm_edge.commands:desktop"]


def test_every_command_is_under_hrm_by_its_own_entry_point():
    for name, target in SCRIPTS.items():
        entry = commands.COMMANDS[name.removeprefix("hrm-")]
        if name not in (*DESKTOP, "hrm-bench"):
            assert entry.target == target


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let every import of a command's module raise an error."""

    def broken(error: BaseException) -> None:
        def raising(_: str) -> None:
            raise error

        monkeypatch.setattr(commands.importlib, "import_module", raising)
        monkeypatch.setattr(metadata, "version", raising)

    return broken


def test_an_interruption_or_a_missing_installation_is_no_traceback(
    run: Run, broken: Callable[[BaseException], None]
):
    broken(KeyboardInterrupt())
    assert run("hrm", "train", "--help") == (130, "", "")
    broken(metadata.PackageNotFoundError("hrm-edge"))
    said = "hrm: hrm-edge is not installed: run pip install 'hrm-edge[serve]'.\n"
    assert run("hrm", "--version") == (3, "", said)


@pytest.mark.parametrize("name", DESKTOP)
def test_a_missing_extra_is_named(name: str, run: Run, broken: Callable[[BaseException], None]):
    broken(ModuleNotFoundError("No module named 'torch'", name="torch"))
    extra = commands.COMMANDS[name.removeprefix("hrm-")].extra
    said = f"{name}: torch is not installed: run pip install 'hrm-edge[{extra}]'.\n"
    assert run(f"/usr/bin/{name}", "--help", entry=commands.desktop) == (3, "", said)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--version", 0, r"hrm \d+\.\d+\.\d+\n"),
        ("slove", 2, "Usage: hrm (.|\n)*No such command 'slove'"),
        ("key list --file nowhere", 2, "hrm-key: the key file nowhere cannot be read"),
    ],
)
def test_hrm_runs_every_command(arguments: str, status: int, said: str, run: Run):
    found, out, error = run("hrm", *arguments.split())
    assert found == status
    assert re.match(said, out + error)


def test_hrm_lists_commands(run: Run):
    status, out, _ = run("hrm")
    assert status == 0
    listed = re.findall(r"^  (\w+) +\w", out, re.MULTILINE)
    assert {f"hrm-{name}" for name in listed} >= set(SCRIPTS)


HEAVY = "torch safetensors onnx onnxruntime matplotlib scipy fastapi uvicorn aiohttp httpx"
ASK_FOR_HELP = """
import importlib, sys
from contextlib import suppress
for target in sys.argv[2:]:
    module, entry = target.split(":")
    sys.argv = ["hrm", "--help"]
    with suppress(SystemExit):
        getattr(importlib.import_module(module), entry)()
print(sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.mark.process
def test_no_command_imports_anything_heavy_before_it_begins():
    targets = [entry.target for entry in commands.COMMANDS.values()]
    ended = ran(sys.executable, "-c", ASK_FOR_HELP, "--", *targets)
    assert ended.stdout.count("Usage: ") == len(commands.COMMANDS)
    loaded = set(re.findall(r"'(\w+)'", ended.stderr))
    assert not loaded & set(HEAVY.split())


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_help_shows_no_types_and_whole_examples(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    application = function_at(commands.COMMANDS[name].target)
    subcommands = getattr(typer.main.get_command(application), "commands", {})
    for arguments in ([], *([subcommand] for subcommand in subcommands)):
        text = invoked(application, *arguments, "--help").stdout
        assert text.startswith("Usage: ")
        assert re.search(r"<(int|float|str|path|list)\b", text) is None, text
        _, _, examples = text.partition("\nExample")
        for line in examples.splitlines()[1:]:
            assert re.match(r"  (\w+=\S+ )?(hrm|python3)", line), line


def test_a_shell_completes_commands(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_HRM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hrm so")
    monkeypatch.setenv("COMP_CWORD", "1")
    status, out, _ = run("hrm")
    assert (status, out.split()) == (0, ["solve"])
