"""hrm-parity: does an engine say what it should, puzzle by puzzle and segment by segment?

hrm-parity sudoku.bundle
hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku --puzzles 2000 --html int8.html
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.engine import EngineLostError
from hrm_edge_runtime.engines.factory import Choice, prepare
from hrm_edge_runtime.parity.comparison import Comparison, compare_engines, write_comparison
from hrm_edge_runtime.parity.gates import DEFAULT_FILE
from hrm_edge_runtime.parity.report import segment_rows, summary_rows
from hrm_host.progress import Stages, stages_on
from hrm_puzzles.data.held_out import Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Held-out puzzles where none are asked for: minutes on a CPU."""

main = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
"""Entry point of `hrm-parity`."""


@main.command(epilog="Example: hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku")
def parity(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle directory or the name of a shipped one; without it the default.")
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine under test, ENGINE[:PRECISION].")] = "auto",
    against: Annotated[
        str | None, typer.Option(help="The engine it is compared with; without it the golden traces, or cpu:fp32.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Compare with PyTorch and this checkpoint instead (a desktop).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data set whose test split gives the puzzles; else golden or fresh ones.")
    ] = None,
    puzzles: Annotated[int | None, typer.Option(min=1, help="So many puzzles: held out, or fresh.")] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of puzzles, or of fresh ones.")] = 1,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Puzzles at a time.")] = 16,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each engine; without it, all cores.")] = None,
    gates: Annotated[Path, typer.Option(help="JSON file of what may differ by how much.")] = DEFAULT_FILE,
    bisect: Annotated[bool, typer.Option("--bisect", help="Name the first node that diverges (a desktop).")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Keep the findings in the bundle's parity.json.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two engines of a bundle; exits with 1 and the first thing that broke where a gate does not hold."""
    try:
        opened, is_golden = Bundle.open(find_bundle(bundle)), data is None and puzzles is None
        with stages_on(Console(stderr=True)) as stages:
            if against is None and checkpoint is None and not is_golden:
                against = "cpu:fp32"
            candidate, reference = _choices(opened, engine, against, checkpoint, num_slots=slots)
            comparison = compare_engines(
                opened,
                candidate,
                reference,
                None if is_golden else _held_out(opened, data, puzzles, seed, stages),
                num_slots=slots,
                num_threads=threads,
                gates_file=gates,
                bisect=bisect,
                progress=partial(stages.show, "puzzles"),
            )
        if html is not None:
            html.write_text(_page(opened, comparison), encoding="utf-8")
        if write:
            write_comparison(opened, comparison)
    except (ValueError, OSError, EngineLostError) as error:
        sys.stderr.write(f"hrm-parity: {error}\n")
        raise typer.Exit(1) from error
    _show(opened, comparison, as_json=as_json)
    raise typer.Exit(1 if comparison.breaks else 0)


def _choices(
    bundle: Bundle, engine: str, against: str | None, checkpoint: Path | None, *, num_slots: int
) -> tuple[Choice, Choice | Path | None]:
    """The candidate, and its reference where that is not the golden traces."""
    if against is not None and checkpoint is not None:
        raise ValueError("a comparison has one reference; give either --against or --checkpoint.")
    candidate = prepare(bundle, engine, num_slots=num_slots)
    reference = checkpoint if against is None else prepare(bundle, against, num_slots=num_slots)
    if reference == candidate:
        raise ValueError(f"{candidate} would be compared with itself; give --against or --checkpoint.")
    return candidate, reference


def _held_out(bundle: Bundle, data: Path | None, puzzles: int | None, seed: int, stages: Stages) -> Questions:
    count, making = puzzles or NUM_PUZZLES, partial(stages.show, "making puzzles")
    if data is None:
        return questions_made(bundle.puzzle, count, seed=seed, num_workers=os.cpu_count() or 1, progress=making)
    questions = questions_from_data(data, bundle.puzzle, count, seed)
    questions.require_ids(bundle.manifest.num_puzzle_ids)
    return questions


def _page(bundle: Bundle, comparison: Comparison) -> str:
    try:
        from hrm_edge_runtime.parity.html import page_of
    except ImportError as error:
        raise ValueError(f"a page needs {error.name}, which is not installed: pip install matplotlib.") from error
    return page_of(bundle.manifest.name, comparison)


def _show(bundle: Bundle, comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(comparison.as_json()))
        return
    console, report = Console(), comparison.report
    title = f"{bundle.manifest.name}: {report.candidate} against {report.reference}"
    head, *rows = segment_rows(report)
    table = Table(*head, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)
    say = partial(console.print, highlight=False, soft_wrap=True)
    for name, text in summary_rows(report):
        say(f"{name:>14}  {text}")
    say(comparison.verdict)
    if comparison.breaks:
        say(f"first break: {comparison.breaks[0]}")
    if len(comparison.breaks) > 1:
        say(f"and {len(comparison.breaks) - 1} more")
    for reason in comparison.reasons:
        say(reason)
    if comparison.bisection:
        say(f"bisection: {comparison.bisection}")
