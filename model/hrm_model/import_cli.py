"""hrm-import: a published checkpoint becomes one of ours. What it imports at the top must not import PyTorch."""

from pathlib import Path
from typing import Annotated

import typer

from hrm_host.command import Command
from hrm_puzzles import registry
from hrm_puzzles.data import sources

HUB_FILES = ("all_config.yaml", "checkpoint")
BY_HAND = f"download {' and '.join(HUB_FILES)} into one directory and import that"
main = Command("hrm-import", extra="train")
"""Entry point of `hrm-import`."""


@main.command(epilog="Example: hrm-import hub:sapientinc/HRM-checkpoint-sudoku-extreme --out runs/published")
def import_checkpoint(
    source: Annotated[
        str,
        typer.Argument(help="Directory with all_config.yaml and step_N or checkpoint; a weight file; hub:ORG/NAME."),
    ],
    out: Annotated[Path, typer.Option(help="Checkpoint directory to write.")],
    puzzle: Annotated[str, typer.Option(help="The puzzle it was trained on; gives the sequence length.")] = "sudoku",
    weights: Annotated[str | None, typer.Option(help="Weight file name; default: the last step_N.")] = None,
) -> None:
    """Import a published HRM or TRM checkpoint; its weight file is opened with a loader that cannot run code."""
    from hrm_model import checkpoint, published

    kind, place = registry.get(puzzle), Path(source)
    if source.startswith(sources.HUB):
        files = (HUB_FILES[0], weights or HUB_FILES[1])
        *_, place = sources.downloaded(source, *files, repo_type="model", by_hand=BY_HAND)
    model = published.model_from_published(place, kind.seq_len, weights)
    if model.config.vocab_size != kind.vocab_size:
        raise checkpoint.CheckpointError(
            f"{source} has {model.config.vocab_size} tokens but {puzzle} has {kind.vocab_size}; choose its own --puzzle"
        )
    checkpoint.save(out, model, {"puzzle": kind.name, "imported_from": Path(source).name, "step": 0})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    data = f" --data data/{puzzle}" if model.config.num_puzzle_ids > 1 else ""
    typer.echo(f"imported {parameters:,} parameters into {out}; export them with 'hrm-export {out}{data}'")
