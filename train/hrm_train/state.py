"""The trainer's own files in a checkpoint: everything an exact continuation needs, in safetensors and JSON.

    trainer.safetensors   raw weights (weights.*), optimiser moments (exp_avg.*, exp_avg_sq.*), slots (slots.*)
    trainer.json          recipe, step, samples, curriculum

`model.safetensors` beside them holds the moving average, the weights to use, and the buffers (the puzzle table). There
are no random states: what is drawn follows from the seed and the step, and the network draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from hrm_model.checkpoint import CheckpointError, read_json
from hrm_model.hrm import HRM
from hrm_train.optim import AdamATan2
from hrm_train.recipe import Recipe

TENSORS, VALUES = "trainer.safetensors", "trainer.json"


@dataclass(kw_only=True)
class Progress:
    """Where a run stands; JSON-ready. `counted_*` are the puzzles the curriculum has not taken in yet."""

    step: int = 0
    samples: int = 0
    curriculum_level: float = 0.0
    curriculum_upcoming: float = 0.0
    solved_share: float = 0.0
    counted_solved: int = 0
    counted_finished: int = 0


def write(
    directory: Path, model: HRM, optimiser: AdamATan2, slots: Mapping[str, Tensor], recipe: Recipe, progress: Progress
) -> None:
    tensors = {**_named(model, optimiser), **{f"slots.{name}": tensor for name, tensor in slots.items()}}
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(flat, directory / TENSORS)
    (directory / VALUES).write_text(
        json.dumps({"recipe": asdict(recipe), "progress": asdict(progress)}, indent=2) + "\n"
    )


@torch.no_grad()
def read(directory: Path, model: HRM, optimiser: AdamATan2, recipe: Recipe) -> tuple[dict[str, Tensor], Progress]:
    """Restores weights and moments in place; returns the slots' tensors and the progress. Refuses another recipe."""
    values = read_json(directory / VALUES)
    saved, mine = values["recipe"], asdict(recipe)
    different = sorted(key for key in {*saved, *mine} if saved.get(key) != mine.get(key))
    if different:
        key = different[0]
        raise CheckpointError(
            f"{directory} was trained with {key}={saved.get(key)!r}, not {mine.get(key)!r}; resume with the run's own "
            "settings, or start a new run from its weights with --init"
        )
    tensors = safetensors.torch.load_file(directory / TENSORS)
    for name, target in _named(model, optimiser).items():
        if name not in tensors or tensors[name].shape != target.shape:
            raise CheckpointError(f"{directory / TENSORS} does not fit the model at {name}; the files are of two runs")
        target.copy_(tensors[name])
    progress = Progress(**values["progress"])
    optimiser.num_steps = progress.step
    return {name[len("slots.") :]: tensor for name, tensor in tensors.items() if name.startswith("slots.")}, progress


def _named(model: HRM, optimiser: AdamATan2) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_parameters()]
    kinds = {"weights": optimiser.params, "exp_avg": optimiser.exp_avg, "exp_avg_sq": optimiser.exp_avg_sq}
    return {
        f"{kind}.{name}": tensor for kind, tensors in kinds.items() for name, tensor in zip(names, tensors, strict=True)
    }
