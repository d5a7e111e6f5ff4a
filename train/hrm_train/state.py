"""The trainer's own files in a checkpoint: everything an exact continuation needs, in safetensors and JSON.

    trainer.safetensors   raw weights (weights.*), optimiser moments (exp_avg.*, exp_avg_sq.*), slots (slots.*)
    trainer.json          recipe, step, samples, curriculum, best validation

`model.safetensors` beside them holds the moving average: the weights to use, and the average to go on from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hrm_model.checkpoint import CheckpointError, load_state, read_json
from hrm_model.hrm import HRM
from hrm_train.optim import AdamATan2
from hrm_train.recipe import Recipe

TENSORS, VALUES = "trainer.safetensors", "trainer.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(kw_only=True)
class Progress:
    """Where a run stands; JSON-ready."""

    step: int = 0
    samples: int = 0
    curriculum_level: float = 0.0
    solved_share: float = 0.0
    best_proven: float = -1.0
    best_step: int = 0


def write(
    directory: Path, model: HRM, optimiser: AdamATan2, slots: Mapping[str, Tensor], recipe: Recipe, progress: Progress
) -> None:
    tensors = {f"weights.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment in MOMENTS:
            if optimiser.state[parameter]:
                tensors[f"{moment}.{name}"] = optimiser.state[parameter][moment]
    tensors |= {f"slots.{name}": tensor for name, tensor in slots.items()}
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(flat, directory / TENSORS)
    (directory / VALUES).write_text(
        json.dumps({"recipe": asdict(recipe), "progress": asdict(progress)}, indent=2) + "\n"
    )


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
    load_state(model, _under(tensors, "weights."), directory / TENSORS)
    moments: dict[str, dict[str, Tensor]] = {moment: _under(tensors, f"{moment}.") for moment in MOMENTS}
    progress = Progress(**values["progress"])
    for name, parameter in model.named_parameters():
        if name in moments["exp_avg"]:
            optimiser.state[parameter] = _moments(moments, name, parameter, progress.step)
    return _under(tensors, "slots."), progress


def _moments(moments: Mapping[str, Mapping[str, Tensor]], name: str, parameter: Tensor, step: int) -> dict[str, Any]:
    restored = {moment: moments[moment][name].to(parameter.device) for moment in MOMENTS}
    return {"step": torch.tensor(float(step)), **restored}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
