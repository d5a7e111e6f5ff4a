"""The options of hrm-eval."""

from dataclasses import dataclass
from typing import Annotated

import typer

from hrm_puzzles.data.options import Columns

SOURCE_HELP = "Checkpoint, run, a run's latest or best, bundle, or a shipped bundle's name."
OTHER_HELP = "Second model; the two are compared puzzle by puzzle."
DATA_HELP = "Data set (test split), file of puzzles, or the puzzle's name to generate puzzles."
PUZZLES_HELP = "Choose this many puzzles at random. Default: all, or 1000 generated ones."
BOARD_HELP = "Evaluate relational weights on a puzzle of another size."
ENGINE_HELP = "cpu or cuda for a checkpoint, ENGINE[:PRECISION] for a bundle."
SEGMENTS_HELP = "Maximum number of segments per puzzle. Default: the model's."
MAX_LOSS_HELP = "Points of exact solves that halting early may lose."


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)]
    other: Annotated[str | None, typer.Argument(help=OTHER_HELP)] = None
    data: Annotated[str, typer.Option(help=DATA_HELP)]
    columns: Columns = None
    puzzles: Annotated[int | None, typer.Option(min=1, help=PUZZLES_HELP)] = None
    board: Annotated[str | None, typer.Option(help=BOARD_HELP)] = None
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "auto"
    max_segments: Annotated[int | None, typer.Option(min=1, help=SEGMENTS_HELP)] = None
    max_loss: Annotated[float, typer.Option(min=0, max=100, help=MAX_LOSS_HELP)] = 0.5
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Puzzles per batch.")] = 64
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads of the engine. Default: all cores."),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object with the whole curve."),
    ] = False
    as_markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print a Markdown table."),
    ] = False
