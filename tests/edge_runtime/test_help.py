"""The help and the completion of every command, as a person at a narrow terminal meets them."""

import re
from importlib import import_module

import pytest
import typer.main
from typer.testing import CliRunner

from hrm_edge import commands

NAMES = list(commands.COMMANDS)


def helps(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The help of a command and of its subcommands, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    module, function = commands.COMMANDS[name].target.split(":")
    application = getattr(import_module(module), function)
    shown = typer.main.get_command(application)
    texts = [CliRunner().invoke(application, ["--help"]).stdout]
    for subcommand in getattr(shown, "commands", {}):
        texts.append(CliRunner().invoke(application, [subcommand, "--help"]).stdout)
    return texts


@pytest.mark.parametrize("name", NAMES)
def test_help_names_no_type_of_python_and_keeps_its_examples_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in helps(name, monkeypatch):
        assert text.startswith("Usage: ")
        assert re.search(r"<(int|float|str|path|list)\b", text) is None, text
        _, _, examples = text.partition("\nExample")
        for line in examples.splitlines()[1:]:
            assert re.match(r"  (\w+=\S+ )?(hrm|python3)", line), line


def test_the_puzzle_in_the_help_of_solve_is_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = helps("solve", monkeypatch)
    assert re.search(r'hrm-solve "[\d.]{81}"\n', text)


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> set[str]:
    """What bash offers for the last word of a line."""
    monkeypatch.setenv("_HRM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setattr("sys.argv", ["hrm"])
    with pytest.raises(SystemExit) as left:
        commands.main()
    assert not left.value.code
    return set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hrm so", {"solve"}),
        ("hrm solve --bu", {"--bundle"}),
        ("hrm solve --bundle mai", set()),
        ("hrm solve --bundle maze-", {"maze-8x8", "maze-14x14"}),
        ("hrm solve --kind sudoku-", {"sudoku-4x4", "sudoku-6x6"}),
        ("hrm serve arc", {"arc-7x7", "arc-15x15"}),
        ("hrm serve --log j", {"json"}),
        ("hrm models --example sudoku-", {"sudoku-6x6", "sudoku-hard"}),
        ("hrm parity logistics-", {"logistics-6x6"}),
        ("hrm data bu", {"build"}),
        ("hrm data build maze-8", {"maze-8x8"}),
        ("hrm train --puzzle arc-1", {"arc-10x10", "arc-15x15"}),
        ("hrm bench segment --bundle sudoku-", {"sudoku-6x6", "sudoku-hard"}),
    ],
)
def test_a_shell_completes_options_bundles_and_kinds(
    line: str,
    offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert completed(line, monkeypatch, capsys) == offered


def test_a_command_that_cannot_run_here_shows_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = commands.importlib.util.find_spec
    monkeypatch.setattr(
        commands.importlib.util,
        "find_spec",
        lambda name: None if name in ("torch", "aiohttp") else found(name),
    )
    monkeypatch.setattr("sys.argv", ["hrm"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        commands.main()
    shown = capsys.readouterr().out
    assert re.search(r"^  train +needs pip install 'hrm-edge\[train\]'$", shown, re.MULTILINE)
    assert re.search(r"^  bench +needs pip install 'hrm-edge\[serve,bench\]'$", shown, re.MULTILINE)
    assert re.search(r"^  solve +solve puzzles", shown, re.MULTILINE)
