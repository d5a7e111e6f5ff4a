"""hrm-train: puzzles in, checkpoint out. Its top-level imports must not import PyTorch.

hrm-train sudoku-small
hrm-train --run runs/sudoku-small --resume
hrm-train status runs/sudoku-small
torchrun --nproc-per-node N --no-python -- hrm-train ...    several GPUs or machines
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_host import command
from hrm_train.options import TrainOptions

main = command.Command("hrm-train", extra="train", cannot=(FloatingPointError,))
"""Entry point of `hrm-train`."""


@main.callback(
    groups={
        "Run": "run resume init yes wandb keep checkpoint_steps checkpoint_minutes log_steps",
        "Validation": "validate_steps validate_whole_steps validation_puzzles",
        "Speed": "threads fill tune tune_batch profile dry_run",
    },
    invoke_without_command=True,
    epilog="Examples: hrm-train sudoku-small; hrm-train --puzzle sudoku --data data/sudoku",
)
@command.taking(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train an HRM on a puzzle, from a data set directory to a run directory with checkpoints."""
    if options.context.invoked_subcommand is None:
        from hrm_train import session
        from hrm_train.distributed import joined

        with joined():
            if options.dry_run:
                session.show_dry_run(options, Console())
            else:
                session.train(options)


@main.command(epilog="Example: hrm-train status runs/sudoku --json")
def status(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    as_json: command.AsJson = False,
) -> None:
    """Show the state of a run: speed, validations, checkpoints, and where time goes."""
    from hrm_train import status as run_status

    found = run_status.read_status(run)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console().print(run_status.table_of(found))
