"""Every command prints its version, loads nothing heavy for its help, and runs as `hrm NAME`."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hrm_edge import commands

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r'^(hrm-\w+) = "([\w.]+:\w+)"$', PYPROJECT, re.MULTILINE))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_says_its_version(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, entry = SCRIPTS[name].split(":")
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    getattr(import_module(module), entry)()
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        "solve 1 --patience 1e300",
        "serve --threads 100000",
        "data build sudoku --out x --train 1000000000000",
        "data build sudoku --out x --workers 1000000",
        "data build arc --out x --augment 1000000000000",
    ],
)
def test_numbers_that_no_machine_holds_are_wrong_use(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_hrm(monkeypatch, *arguments.split()) == 2
    assert "Invalid value for" in capsys.readouterr().err


DESKTOP = [name for name, entry in SCRIPTS.items() if entry == "hrm_edge.commands:desktop"]


def test_every_command_is_under_hrm_by_its_own_entry_point() -> None:
    for name, target in SCRIPTS.items():
        entry = commands.COMMANDS[name.removeprefix("hrm-")]
        if name not in (*DESKTOP, "hrm-bench"):
            assert entry.target == target


@pytest.mark.parametrize("name", DESKTOP)
def test_without_its_extra_a_command_of_the_desktop_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(commands.importlib, "import_module", missing)
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{name}", "--help"])
    with pytest.raises(SystemExit) as left:
        commands.desktop()
    extra = commands.COMMANDS[name.removeprefix("hrm-")][1]
    said = f"{name}: torch is not installed: run pip install 'hrm-edge[{extra}]'.\n"
    assert (left.value.code, capsys.readouterr().err) == (3, said)


def run_hrm(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hrm", *arguments])
    try:
        commands.main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--version"], 0, r"hrm \d+\.\d+\.\d+\n"),
        (["solve", "--version"], 0, r"hrm-solve \d+\.\d+\.\d+\n"),
        (["slove"], 2, "Usage: hrm (.|\n)*No such command 'slove'"),
        (["key", "list", "--file", "nowhere"], 2, "hrm-key: the key file nowhere cannot be read"),
    ],
)
def test_hrm_runs_every_command(
    arguments: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_hrm(monkeypatch, *arguments) == status
    shown = capsys.readouterr()
    assert re.match(said, shown.out + shown.err), shown


def test_hrm_lists_every_command_with_a_line_on_each_and_completes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_hrm(monkeypatch) == 0
    listed = re.findall(r"^  (\w+) +\w", capsys.readouterr().out, re.MULTILINE)
    assert {f"hrm-{name}" for name in listed} >= set(SCRIPTS)
    monkeypatch.setenv("_HRM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hrm so")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run_hrm(monkeypatch) == 0
    assert capsys.readouterr().out.split() == ["solve"]


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
def test_no_command_imports_anything_heavy_before_it_begins() -> None:
    targets = [entry.target for entry in commands.COMMANDS.values()]
    program = [sys.executable, "-c", ASK_FOR_HELP, "--", *targets]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    assert ended.stdout.count("Usage: ") == len(commands.COMMANDS)
    loaded = set(re.findall(r"'(\w+)'", ended.stderr))
    assert not loaded & set(HEAVY.split())
