"""hrm-parity: does an engine say what it should, puzzle by puzzle and segment by segment?

hrm-parity sudoku.bundle
hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku --puzzles 2000 --html int8.html
"""

from __future__ import annotations

import json
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
from hrm_edge_runtime.parity.comparison import Findings, compare_engines, request_of
from hrm_edge_runtime.parity.gates import DEFAULT_FILE
from hrm_edge_runtime.parity.record import write_findings
from hrm_edge_runtime.parity.report import segment_rows, summary_rows
from hrm_host.progress import stages_on

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog="Example: hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku")
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
        opened = Bundle.open(find_bundle(bundle))
        with stages_on(Console(stderr=True)) as stages:
            request = request_of(
                opened,
                engine=engine,
                against=against,
                checkpoint=checkpoint,
                data=data,
                puzzles=puzzles,
                seed=seed,
                num_slots=slots,
                num_threads=threads,
                gates_file=gates,
                bisect=bisect,
                progress=partial(stages.show, "making puzzles"),
            )
            num_puzzles = len(request.questions)
            findings = compare_engines(request, lambda done: stages.show("puzzles", done, num_puzzles))
        if html is not None:
            _write_page(html, opened, findings)
        if write:
            write_findings(opened, findings)
    except (ValueError, OSError, EngineLostError) as error:
        sys.stderr.write(f"hrm-parity: {error}\n")
        raise typer.Exit(1) from error
    _show(opened, findings, as_json=as_json)
    raise typer.Exit(1 if findings.breaks else 0)


def main() -> None:
    """Entry point of `hrm-parity`."""
    app()


def _write_page(path: Path, bundle: Bundle, findings: Findings) -> None:
    from hrm_edge_runtime.parity.html import page_of

    path.write_text(page_of(bundle.manifest.name, findings), encoding="utf-8")


def _show(bundle: Bundle, findings: Findings, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(findings.as_json()))
        return
    console, report = Console(), findings.report
    title = f"{bundle.manifest.name}: {report.candidate} against {report.reference}"
    head, *rows = segment_rows(report)
    table = Table(*head, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name, text in summary_rows(report):
        console.print(f"{name:>14}  {text}", highlight=False, soft_wrap=True)
    for line in verdict_lines(findings):
        console.print(line, highlight=False, soft_wrap=True)


def verdict_lines(findings: Findings) -> list[str]:
    """Passed or not, the first break, its reasons, and what a bisection named."""
    first = [f"first break: {one}" for one in findings.breaks[:1]]
    more = [f"and {len(findings.breaks) - 1} more" for _ in findings.breaks[1:2]]
    named = [f"bisection: {findings.bisection}"] if findings.bisection else []
    return [findings.verdict, *first, *more, *findings.reasons, *named]


if __name__ == "__main__":
    main()
