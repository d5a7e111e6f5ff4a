"""`hrm-bench accuracy`: what more attempts at hard puzzles bring, and what they cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_benchmarks import accuracy as bench
from hrm_benchmarks.accuracy_report import as_json, one_line, print_figures, save_picture
from hrm_benchmarks.report import paper
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.solve.solvers import OfflineSolver

ATTEMPTS = (1, 4, 16, 64)
EXAMPLE = "Example: hrm-bench accuracy --puzzles hard.txt --attempts 1 --attempts 16 --max-segments 128 --png hard.png"


def accuracy(
    bundle: Annotated[str | None, typer.Option(help="Bundle's directory or shipped name; else the default.")] = None,
    puzzles: Annotated[
        Path | None, typer.Option(help="One in each line, CSV in the published form, or NDJSON; else generated.")
    ] = None,
    difficulty: Annotated[str | None, typer.Option(help="Of generated puzzles; else the hardest.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many: the first of the file, or so many generated.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of generated puzzles.")] = 0,
    attempts: Annotated[
        list[int] | None, typer.Option(min=1, max=1024, help="Attempts at each, may be repeated. [1, 4, 16, 64]")
    ] = None,
    max_segments: Annotated[int | None, typer.Option(min=1, help="Of each attempt; else the model's limit.")] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Attempts in one batch.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = 1,
    png: Annotated[Path | None, typer.Option(help="Draw solves against attempts and compute.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every puzzle, in place of the table.")] = False,
) -> None:
    """Solve the same puzzles with more and more attempts; proven answers are compared with the known solutions."""
    settings = dict[str, object](locals())
    progress, levels = Console(stderr=True), list[bench.Level]()
    try:
        opened = Bundle.open(find_bundle(bundle))
        bench.require_proofs(opened)
        puzzle, choice = opened.puzzle, choose(opened, engine, num_slots=slots)
        questions = (
            bench.questions_from_file(puzzles, puzzle, count)
            if puzzles is not None
            else bench.generated(puzzle, difficulty or puzzle.difficulties[-1], count, seed)
        )
        solver = OfflineSolver(bundle=opened, choice=choice, num_slots=slots, num_threads=threads)
        for level in bench.measure(solver.solve_all, puzzle, questions, attempts or ATTEMPTS, max_segments):
            levels.append(level)
            progress.print(one_line(level), style="dim", highlight=False)
        title = f"{opened.manifest.name} {choice}, {len(questions)} puzzles, up to {max_segments or 'all'} segments"
        if png is not None:
            save_picture(png, title, bench.figures(levels))
    except ValueError as error:
        print(f"hrm-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    if json:
        print(as_json(settings, levels))
    else:
        print_figures(title, bench.figures(levels), paper())
