"""hrm-import: a published HRM checkpoint becomes one of ours.

hrm-import checkpoints/sudoku-extreme --puzzle sudoku --out runs/published
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hrm_model import checkpoint
from hrm_model.published import model_from_published
from hrm_puzzles import registry

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: hrm-import checkpoints/sudoku-extreme --puzzle sudoku --out runs/published")
def import_checkpoint(
    source: Annotated[Path, typer.Argument(help="Directory with all_config.yaml and step_N or checkpoint.")],
    out: Annotated[Path, typer.Option(help="Checkpoint directory to write.")],
    puzzle: Annotated[str, typer.Option(help="The puzzle it was trained on; gives the sequence length.")] = "sudoku",
    weights: Annotated[str | None, typer.Option(help="Weight file name; default: the last step_N.")] = None,
) -> None:
    """Import a published HRM checkpoint; its weight file is opened with a loader that cannot run code."""
    kind = registry.get(puzzle)
    model = model_from_published(source, kind.seq_len, weights)
    if model.config.vocab_size != kind.vocab_size:
        raise checkpoint.CheckpointError(
            f"{source} has {model.config.vocab_size} tokens but {puzzle} has {kind.vocab_size}; choose its own --puzzle"
        )
    checkpoint.save(out, model, {"puzzle": kind.name, "imported_from": source.name, "step": 0})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    typer.echo(f"imported {parameters:,} parameters into {out}; export them with 'hrm-export {out}'")


def main() -> None:
    """Runs the command; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"hrm-import: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
