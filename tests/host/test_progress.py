"""Stages: bars on a terminal, lines in a pipe, nothing in what the command itself prints."""

import io

from rich.console import Console

from hrm_host.progress import Stages, stages_on

Call = tuple[int, int | None]


def shown(*calls: Call, first_line_s: float = 0.0, line_every_s: float = 0.0) -> str:
    output = io.StringIO()
    console = Console(file=output)
    with stages_on(console, first_line_s=first_line_s, line_every_s=line_every_s) as stages:
        for done, total in calls:
            stages.show("puzzles", done, total, f"{done} solved")
    return output.getvalue()


def test_a_pipe_gets_lines_at_intervals():
    first, second, last = shown((1, 4), (2, 4), (4, 4)).splitlines()
    assert first == "puzzles: 1 of 4, 1 solved"
    assert second.startswith("puzzles: 2 of 4, 2 solved, ")
    assert second.endswith(" s left")
    assert last == "puzzles: 4 done in 0 s, 4 solved"
    assert shown((7, None)) == "puzzles: 7, 7 solved\n"
    assert shown((1, 4), (4, 4), first_line_s=60.0) == ""
    assert shown((1, 4), (2, 4), (3, 4), line_every_s=60.0).count("\n") == 1


def test_no_console_and_a_quiet_one_show_nothing():
    output = io.StringIO()
    for console in (None, Console(file=output, quiet=True)):
        Stages(console=console, first_line_s=0.0).show("puzzles", 1, 2)
    assert output.getvalue() == ""
