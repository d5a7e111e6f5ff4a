"""What trainings reach: families of models in equal CPU time, and fewer puzzles with equal samples.

Each trains on one thread, and its averaged weights solve the test split.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hrm_benchmarks.command import TrainingOptions
from hrm_benchmarks.report import Row
from hrm_model.config import HRMConfig
from hrm_model.families import model_of, num_parameters_of
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import DataRecipe, build
from hrm_puzzles.data.sources import MIXED
from hrm_train import hardware, loop
from hrm_train.evaluate import evaluate
from hrm_train.recipe import Recipe, config_for, recipe_for

# What the families change in the preset small. The preset relational is a family of its own.
TRM: dict[str, Any] = {"arch": "trm", "high_layers": 2, "low_layers": 2}
TRANSFORMER: dict[str, Any] = {"arch": "transformer", "max_segments": 1}
FAMILIES = {"hrm": {}, "trm": TRM, "transformer": TRANSFORMER, "relational": {}}
PARAMETERS = 150_000  # of each compared model, about
WIDTHS = range(8, 257, 8)  # candidates for the width of one vector
COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")
COLUMNS = {
    "puzzle": "{puzzle}",
    "model": "{model}",
    "puzzles": "{puzzles:,}",
    "parameters": "{parameters:,}",
    "samples": "{samples:,}",
    "exact %": "{exact:.1f}",
    "proven %": "{proven:.1f}",
    "open cells %": "{cells:.1f}",
}
LEGEND = "held-out puzzles after all segments; sample: one puzzle for one segment"


def families(options: TrainingOptions, sizes: tuple[int, int], folder: Path) -> Iterator[Row]:
    """Yield a row for each puzzle and family; each trains for equal CPU seconds.

    Their widths give them about PARAMETERS parameters. Each has the recipe of its preset, except
    that the learning rate stays constant after the warm-up.
    """
    for name in options.puzzle or COMPARED:
        data = built(name, folder, sizes)
        puzzle = registry.get(name)
        source = datasets.open_split(data, "train", puzzle)
        for arch, changes in FAMILIES.items():
            preset = "relational" if arch == "relational" else "small"
            usual = recipe_for(preset, puzzle, batch_size=32)
            recipe = replace(usual, seed=options.seed, lr_min_ratio=1.0, warmup_samples=2_000)
            family = replace(config_for(preset, puzzle, 1), **changes)
            config = at_best_width(family)
            end_s = time.process_time() + options.cpu_s
            row = trained(
                config, recipe, source, data, lambda _, end_s=end_s: time.process_time() >= end_s
            )
            yield {"puzzle": name, "model": arch, **row}


def parts(
    name: str, sizes: tuple[int, int], folder: Path, preset: str, num_samples: int, *, seed: int
) -> Iterator[Row]:
    """Yield a row for 1/8, 1/4, 1/2 and all of the puzzles; each trains with `num_samples`.

    A smaller data set is the beginning of a larger one, with the same test split.
    """
    num_train, num_test = sizes
    puzzle = registry.get(name)
    usual = recipe_for(preset, puzzle, batch_size=16)
    recipe = replace(usual, seed=seed, total_samples=num_samples, warmup_samples=num_samples // 10)
    for part in (8, 4, 2, 1):
        data = built(name, folder / f"{part}", (num_train // part, num_test))
        source = datasets.open_split(data, "train", puzzle)
        config = config_for(preset, puzzle, source.num_puzzle_ids)
        row = trained(
            config, recipe, source, data, lambda trainer: trainer.progress.samples >= num_samples
        )
        yield {"puzzle": name, "model": preset, **row}


def built(name: str, folder: Path, sizes: tuple[int, int], difficulty: str = MIXED) -> Path:
    """Build a data set of generated puzzles and return its directory."""
    num_train, num_test = sizes
    recipe = DataRecipe(puzzle=name, num_train=num_train, num_test=num_test, difficulty=difficulty)
    build(recipe, folder / name)
    return folder / name


def trained(
    config: HRMConfig,
    recipe: Recipe,
    source: datasets.Split,
    data: Path,
    is_over: Callable[[loop.Trainer], bool],
) -> Row:
    """Train until it is over, and return what the averaged weights reach on the test split."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    puzzle = registry.get(recipe.puzzle)
    trainer = loop.Trainer(model_of(config), source, recipe, hardware.PRESETS["cpu"])
    while not is_over(trainer):
        trainer.step()
    held_out = datasets.open_split(data, "test", puzzle)
    rows = held_out.rows(np.arange(len(held_out)))
    evaluation = evaluate(trainer.averaged_model(), puzzle, rows)
    return {
        "puzzles": source.num_groups,
        "parameters": num_parameters_of(config),
        "samples": trainer.progress.samples,
        "steps": trainer.progress.step,
        "exact": 100 * evaluation.exact[-1],
        "proven": 100 * evaluation.proven[-1],
        "cells": 100 * evaluation.cells[-1],
    }


def at_best_width(family: HRMConfig) -> HRMConfig:
    """Return the sizes at the width that comes closest to PARAMETERS."""
    configs: list[HRMConfig] = []
    for width in WIDTHS:
        sizes = {"hidden_size": family.num_symbols * width}
        if family.puzzle_vector_size:
            sizes["puzzle_vector_size"] = family.num_symbols * width
        configs.append(replace(family, **sizes))
    return min(configs, key=lambda config: abs(num_parameters_of(config) - PARAMETERS))
