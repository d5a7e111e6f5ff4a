"""hrm-import: converts a published checkpoint. Its top-level imports must not import PyTorch."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hrm_host.command import Command, runnable
from hrm_puzzles import registry
from hrm_puzzles.data import sources
from hrm_puzzles.puzzle import Voting

SETTINGS_FILE = "all_config.yaml"
WEIGHTS_FILE = "checkpoint"
BY_HAND = f"download {SETTINGS_FILE} and {WEIGHTS_FILE} into one directory and import that"
main = Command("hrm-import", extra="train")
"""Entry point of `hrm-import`."""


@main.command(
    epilog="Example: hrm-import hub:sapientinc/HRM-checkpoint-sudoku-extreme --out runs/published"
)
def import_checkpoint(
    source: Annotated[
        str,
        typer.Argument(help="Directory of a published run, a weight file, or hub:ORG/NAME."),
    ],
    out: Annotated[Path, typer.Option(help="Checkpoint directory to write.")],
    puzzle: Annotated[str, typer.Option(help="Puzzle that the model was trained on.")] = "sudoku",
    file: Annotated[
        str | None, typer.Option(help="Name of the weight file. Default: the last step_N.")
    ] = None,
    weights: Annotated[
        Literal["raw", "average"] | None,
        typer.Option(help="Which weights to import if a file holds both: raw or average."),
    ] = None,
) -> None:
    """Import a published HRM or TRM checkpoint, with a loader that cannot run code."""
    from hrm_model import checkpoint, published

    kind = registry.get(puzzle)
    place = Path(source)
    if source.startswith(sources.HUB):
        files = (SETTINGS_FILE, file or WEIGHTS_FILE)
        *_, place = sources.downloaded(source, *files, repo_type="model", by_hand=BY_HAND)
    model = published.model_from_published(place, kind.seq_len, file, weights)
    config = model.config
    if config.vocab_size != kind.vocab_size:
        raise checkpoint.CheckpointError(
            f"{source} has {config.vocab_size} tokens but {puzzle} has {kind.vocab_size}; "
            "choose the --puzzle it was trained on"
        )
    meta = {"puzzle": kind.name, "imported_from": Path(source).name, "step": 0}
    checkpoint.save(out, model, meta)
    export: list[object] = [out]
    if config.num_puzzle_ids > 1:
        # puzzles without named tasks read only the first row
        is_named = isinstance(kind, Voting)
        export += ["--data", f"data/{kind.name}"] if is_named else ["--puzzle-ids", 1]
    typer.echo(
        f"imported {model.num_parameters:,} parameters into {out}; export them with "
        f'"{runnable("hrm-export", *export)}"'
    )
