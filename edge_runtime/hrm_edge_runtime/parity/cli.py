"""hrm-parity: does an engine say what it should, puzzle by puzzle and segment by segment?

hrm-parity sudoku.bundle
hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku --puzzles 2000 --html int8.html
hrm-parity sudoku.bundle --engine unrolled:fp16      # the whole loop in one graph, beside the runtime's loop
"""

import json
from functools import partial

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.engine import EngineLostError
from hrm_edge_runtime.parity.comparison import (
    Comparison,
    ParityOptions,
    compare_engines,
    write_comparison,
)
from hrm_edge_runtime.parity.report import segment_rows, summary_rows
from hrm_edge_runtime.parity.unrolled import compare_loop
from hrm_host import command, progress

main = command.Command("hrm-parity", cannot=(EngineLostError,))
"""Entry point of `hrm-parity`."""


@main.command(
    groups={"Puzzles": "data puzzles seed", "Findings": "gates bisect html write as_json"},
    epilog="Example: hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku",
)
@command.taking(ParityOptions)
def parity(options: ParityOptions) -> None:
    """Compare two engines of a bundle; exits with 1 and the first thing that broke where a gate does not hold."""
    bundle = Bundle.open(find_bundle(options.bundle))
    if options.engine.startswith("unrolled"):
        report = compare_loop(bundle, options, progress.Stages())
        print(json.dumps(report.as_json()) if options.as_json else report)
        raise typer.Exit(0 if report.passed else 1)
    with progress.stages_on(Console(stderr=True)) as stages:
        comparison = compare_engines(bundle, options, stages)
    if options.html is not None:
        options.html.write_text(_page(bundle, comparison), encoding="utf-8")
    if options.write:
        write_comparison(bundle, comparison)
    _show(bundle, comparison, as_json=options.as_json)
    raise typer.Exit(1 if comparison.breaks else 0)


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
