"""hrm-eval: how good a model is on held-out puzzles. What it imports at the top must not import PyTorch."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_host import command
from hrm_host.progress import stages_on

main = command.Command("hrm-eval", extra="export")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    source: Annotated[str, typer.Argument(help="Checkpoint, a run or its latest or best, a bundle, or a shipped one.")]
    data: Annotated[str, typer.Option(help="Data set (its test split), CSV file, or the puzzle's name for fresh ones.")]
    puzzles: Annotated[int | None, typer.Option(min=1, help="A random choice of so many; else all, or 1000.")] = None
    board: Annotated[str | None, typer.Option(help="Puzzle of another size for relational weights.")] = None
    engine: Annotated[str, typer.Option(help="cpu or cuda for PyTorch; ENGINE[:PRECISION] for a bundle.")] = "auto"
    max_segments: Annotated[int | None, typer.Option(min=1, help="Segments a puzzle may run; else the model's.")] = None
    max_loss: Annotated[float, typer.Option(min=0, max=100, help="Points of exact solves that may be lost.")] = 0.5
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Puzzles at a time.")] = 64
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine; without it, all cores.")] = None
    picture: Annotated[Path | None, typer.Option(help="File for a picture of the policies, .png or .svg.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with the whole curve.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False


@main.command(
    groups={"Engine": "engine slots threads max_segments", "Output": "picture as_json as_markdown"},
    epilog="Example: hrm-eval runs/sudoku/best --data data/sudoku --picture eval.png",
)
@command.taking(EvaluationOptions)
def evaluate_command(options: EvaluationOptions) -> None:
    """Exact solves, cells and mean segments of every halting policy, by difficulty; for ARC pass@k by votes."""
    from hrm_export import evaluation

    subject = evaluation.subject_of(options)
    with closing(subject.engine), stages_on() as stages:
        report = evaluation.evaluate(subject, options, stages)
    if options.picture is not None:
        evaluation.save_picture(options.picture, report)
    if options.as_json:
        print(json.dumps(asdict(report)))
    elif options.as_markdown:
        print(report.markdown())
    else:
        Console().print(report.table())
