"""hrm-eval: scores a model on held-out puzzles. Heavy imports wait until the command runs."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm_host import command

if TYPE_CHECKING:
    from hrm_parity.accuracy import Subject


main = command.Command("hrm-eval", extra="export")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    source: Annotated[
        str,
        typer.Argument(
            help="Checkpoint, run, a run's latest or best, bundle, or a shipped bundle's name."
        ),
    ]
    other: Annotated[
        str | None, typer.Argument(help="Second model; the two are compared puzzle by puzzle.")
    ] = None
    data: Annotated[
        str,
        typer.Option(
            help="Data set (test split), file of puzzles, or the puzzle's name to generate puzzles."
        ),
    ]
    columns: command.Columns = None
    puzzles: Annotated[
        int | None,
        typer.Option(
            min=1, help="Choose this many puzzles at random. Default: all, or 1000 generated ones."
        ),
    ] = None
    board: Annotated[
        str | None, typer.Option(help="Evaluate relational weights on a puzzle of another size.")
    ] = None
    engine: Annotated[
        str, typer.Option(help="cpu or cuda for a checkpoint, ENGINE[:PRECISION] for a bundle.")
    ] = "auto"
    max_segments: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Maximum number of segments per puzzle. Default: the model's."
        ),
    ] = None
    max_loss: Annotated[
        float,
        typer.Option(min=0, max=100, help="Points of exact solves that halting early may lose."),
    ] = 0.5
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Puzzles per batch.")] = 64
    threads: command.Threads = None
    as_json: command.AsJson = False

    def opened(self, source: str) -> "Subject":
        """Open a checkpoint or a bundle. A bundle needs no PyTorch."""
        from hrm_edge_runtime.contract.manifest import MANIFEST_NAME
        from hrm_parity.accuracy import open_bundle

        settings: dict[str, Any] = {
            "engine": self.engine,
            "num_slots": self.slots,
            "num_threads": self.threads,
            "max_segments": self.max_segments,
        }
        path = Path(source)
        if path.exists() and not (path / MANIFEST_NAME).is_file():
            from hrm_export.torch_engine import open_checkpoint

            return open_checkpoint(path, board=self.board, **settings)
        if self.board is not None:
            raise ValueError(f"{source} is a bundle, of one board; omit --board")
        return open_bundle(source, **settings)


@main.command(
    groups={
        "Engine": "engine slots threads max_segments",
    },
    epilog="Example: hrm-eval runs/sudoku/best --data data/sudoku",
)
@command.taking(EvaluationOptions)
def evaluate_command(options: EvaluationOptions) -> None:
    """Score every halting policy by difficulty: exact solves, mean segments, pass@k.

    With two models: what each proves and solves, and the difference with its 95 % interval.
    """
    from rich.console import Console

    from hrm_host.progress import stages_on
    from hrm_parity import accuracy

    with stages_on() as stages:
        subject = options.opened(options.source)
        with closing(subject.engine):
            questions = subject.held_out(options.data, options.puzzles, options.columns, stages)
            rollout = subject.rollout(questions, stages)
        if options.other is None:
            max_loss = options.max_loss / 100
            report = accuracy.accuracy_of(subject, rollout, Path(options.data), max_loss)
        else:
            other = options.opened(options.other)
            with closing(other.engine):
                if other.puzzle.name != subject.puzzle.name:
                    solved = f"{subject.name} solves {subject.puzzle.name}"
                    raise ValueError(
                        f"{solved} and {other.name} {other.puzzle.name}; "
                        "give two models of one board, or --board"
                    )
                others = other.rollout(questions, stages)
            report = accuracy.side_by_side(subject, rollout, other, others)
    if options.as_json:
        print(json.dumps(asdict(report)))
    else:
        Console().print(accuracy.table(report.rows(), report.caption()))
