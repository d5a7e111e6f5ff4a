"""Stages: bars on a terminal, lines in a pipe, nothing in what the command itself prints."""

import io
import sys

import pytest
from rich.console import Console

from hrm_host.progress import Stages, stages_on


def shown(
    console: Console,
    *calls: tuple[int, int | None],
    first_line_s: float = 0.0,
    line_every_s: float = 0.0,
) -> str:
    with stages_on(console, first_line_s=first_line_s, line_every_s=line_every_s) as stages:
        for done, total in calls:
            stages.show("puzzles", done, total, f"{done} solved")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_lines() -> None:
    lines = shown(Console(file=io.StringIO()), (1, 4), (2, 4), (4, 4)).splitlines()
    assert lines[0] == "puzzles: 1 of 4, 1 solved"
    assert lines[1].startswith("puzzles: 2 of 4, 2 solved, ")
    assert lines[1].endswith(" s left")
    assert lines[2] == "puzzles: 4 done in 0 s, 4 solved"


def test_an_unknown_total_is_left_out() -> None:
    assert shown(Console(file=io.StringIO()), (7, None)) == "puzzles: 7, 7 solved\n"


def test_a_short_stage_is_not_worth_a_line() -> None:
    assert shown(Console(file=io.StringIO()), (1, 4), (4, 4), first_line_s=60.0) == ""


def test_lines_keep_their_distance() -> None:
    assert (
        shown(Console(file=io.StringIO()), (1, 4), (2, 4), (3, 4), line_every_s=60.0).count("\n")
        == 1
    )


def test_a_terminal_gets_a_bar_with_the_note() -> None:
    text = shown(Console(file=io.StringIO(), force_terminal=True, width=120), (1, 4), (3, 4))
    assert "\x1b[" in text
    assert "3 solved" in text


def test_a_stage_that_is_removed_leaves_the_terminal() -> None:
    with stages_on(Console(file=io.StringIO(), force_terminal=True)) as stages:
        stages.show("phase", 1, 2)
        assert stages.bars is not None
        assert len(stages.bars.tasks) == 1
        stages.remove("phase")
        assert not stages.bars.tasks


def test_what_the_command_prints_reaches_its_own_output(capsys: pytest.CaptureFixture[str]) -> None:
    with stages_on(Console(file=io.StringIO(), force_terminal=True)) as stages:
        stages.show("puzzles", 1, 2)
        print("an answer")
        print("a remark", file=sys.stderr)
    assert capsys.readouterr() == ("an answer\n", "a remark\n")


@pytest.mark.parametrize("console", [None, Console(file=io.StringIO(), quiet=True)])
def test_no_console_and_a_quiet_one_show_nothing(console: Console | None) -> None:
    stages = Stages(console=console, first_line_s=0.0)
    stages.show("puzzles", 1, 2)
    assert console is None or console.file.getvalue() == ""  # type: ignore[attr-defined]
