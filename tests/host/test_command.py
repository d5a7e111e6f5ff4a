"""Every command ends in one of five ways, says its version, and stands under `hrm`."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hrm_host import umbrella
from hrm_host.command import Command

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r'^(hrm-\w+) = "([\w.]+:\w+)"$', PYPROJECT, re.MULTILINE))


class BrokenGateError(ValueError):
    exit_status = 1


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 0, ""),
        (BrokenGateError("it lost a point"), 1, "hrm-try: it lost a point\n"),
        (ValueError("4 is no 5: give a 5."), 2, "hrm-try: 4 is no 5: give a 5.\n"),
        (FileNotFoundError("no such file: x"), 2, "hrm-try: no such file: x\n"),
        (OSError(28, "No space left"), 3, "hrm-try: [Errno 28] No space left; make room there\n"),
        (ArithmeticError("the loss is no number"), 3, "hrm-try: the loss is no number\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            3,
            "hrm-try: torch is not installed: run pip install 'hrm-edge[train]'.\n",
        ),
        (KeyboardInterrupt(), 130, "hrm-try: stopped\n"),
    ],
)
def test_a_command_ends_in_one_of_five_ways(error: BaseException | None, status: int, said: str) -> None:
    app = Command("hrm-try", extra="train", cannot=(ArithmeticError,))

    @app.command()
    def attempt() -> None:
        if error is not None:
            raise error

    ended = CliRunner().invoke(app, [])
    assert (ended.exit_code, ended.stderr) == (status, said)
    assert CliRunner().invoke(app, ["--nonsense"]).exit_code == 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_says_its_version(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, entry = SCRIPTS[name].split(":")
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    getattr(import_module(module), entry)()
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("name", umbrella.DESKTOP)
def test_without_its_extra_a_command_of_the_desktop_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(umbrella.importlib, "import_module", missing)
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{name}", "--help"])
    with pytest.raises(SystemExit) as left:
        umbrella.desktop()
    said = f"{name}: torch is not installed: run pip install 'hrm-edge[{umbrella.DESKTOP[name][1]}]'.\n"
    assert (left.value.code, capsys.readouterr().err) == (3, said)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as an installer leaves it: with the entry points that pyproject.toml states now."""
    info = tmp_path / "hrm_edge-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hrm-edge\nVersion: 1.2.3\n")
    lines = [f"{name} = {target}" for name, target in SCRIPTS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[console_scripts]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--version"], 0, "hrm 1.2.3\n"),
        (["solve", "--version"], 0, "hrm-solve 1.2.3\n"),
        (["slove"], 2, "hrm: there is no command 'slove'; did you mean solve? hrm --help lists all.\n"),
        (["key", "list", "--file", "nowhere"], 2, "hrm-key: the key file nowhere cannot be read"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_hrm_runs_every_command(
    arguments: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["hrm", *arguments])
    try:
        umbrella.main()
        ended = 0
    except SystemExit as left:
        ended = left.code or 0
    shown = capsys.readouterr()
    assert (ended, (shown.out + shown.err).startswith(said)) == (status, True), shown


@pytest.mark.usefixtures("installed")
def test_hrm_lists_what_is_installed_with_a_line_on_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hrm"])
    umbrella.main()
    listed = re.findall(r"^  (\w+) +\w", capsys.readouterr().out, re.MULTILINE)
    assert sorted(f"hrm-{name}" for name in listed) == sorted(SCRIPTS)
