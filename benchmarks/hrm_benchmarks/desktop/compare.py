"""HRM, TRM, a plain transformer and relational blocks on the same puzzles, seeds and CPU seconds.

Their widths give them about as many parameters. Each trains on one thread by the recipe of its
preset, except that the learning rate stays constant after the warm-up.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from hrm_benchmarks.report import Row, markdown
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_puzzles.puzzle import Puzzle
from hrm_train import batches, hardware, loop
from hrm_train.evaluate import Evaluation, evaluate
from hrm_train.recipe import Recipe, config_for, recipe_for

PRESET_OF = {"hrm": "small", "trm": "small", "transformer": "small", "relational": "relational"}
TRM: dict[str, Any] = {"arch": "trm", "high_layers": 2, "low_layers": 2}
TRANSFORMER: dict[str, Any] = {"arch": "transformer", "max_segments": 1}
CHANGES_OF = {"hrm": {}, "trm": TRM, "transformer": TRANSFORMER, "relational": {}}
ARCHS = tuple(PRESET_OF)
WIDTHS = range(8, 257, 8)  # candidates for the width of one vector
WARMUP = 2_000  # samples
BATCH_SIZE = 32
COLUMNS = {
    "puzzle": "{puzzle}",
    "model": "{arch}",
    "parameters": "{parameters:,}",
    "samples": "{samples:,}",
    "exact %": "{exact}",
    "open cells %": "{cells}",
}
LEGEND = (
    "exact solves and correct cells of each seed after all segments; "
    "sample: one puzzle for one segment"
)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The same budget for every family: seeds, CPU time, parameters, and puzzles of each kind."""

    seeds: Sequence[int]
    cpu_s: float
    num_parameters: int
    num_train: int
    num_test: int

    def rows(self, puzzles: Iterable[str]) -> Iterator[Row]:
        """Yield a row for each puzzle and family, as it ends."""
        with TemporaryDirectory() as folder:
            for name in puzzles:
                data = Path(folder) / name
                recipe = DataRecipe(puzzle=name, num_train=self.num_train, num_test=self.num_test)
                build(recipe, data)
                for arch in ARCHS:
                    yield self.measure(arch, registry.get(name), data)

    def measure(self, arch: str, puzzle: Puzzle, data: Path) -> Row:
        """Train once for each seed, and evaluate the averaged weights on the test split."""
        config = config_of(arch, puzzle, self.num_parameters)
        recipe = recipe_of(arch, puzzle)
        samples: list[int] = []
        exact: list[float] = []
        cells: list[float] = []
        for seed in self.seeds:
            seeded = replace(recipe, seed=seed)
            num_samples, evaluation = _trained(config, seeded, puzzle, data, self.cpu_s)
            samples.append(num_samples)
            exact.append(_percent(evaluation.exact[-1]))
            cells.append(_percent(evaluation.cells[-1]))
        return {
            "puzzle": puzzle.name,
            "arch": arch,
            "parameters": num_parameters(config),
            "samples": round(np.mean(samples)),
            "exact": exact,
            "cells": cells,
        }


def _percent(share: float) -> float:
    return round(100 * share, 1)


def config_of(arch: str, puzzle: Puzzle, wanted: int) -> HRMConfig:
    """Return the family's sizes at the width that comes closest to `wanted` parameters."""
    preset = config_for(PRESET_OF[arch], puzzle, 1)
    family = replace(preset, **CHANGES_OF[arch])
    configs = [_at_width(family, width) for width in WIDTHS]
    return min(configs, key=lambda config: abs(num_parameters(config) - wanted))


def _at_width(config: HRMConfig, width: int) -> HRMConfig:
    hidden_size = config.num_symbols * width
    if not config.puzzle_vector_size:
        return replace(config, hidden_size=hidden_size)
    return replace(config, hidden_size=hidden_size, puzzle_vector_size=hidden_size)


def recipe_of(arch: str, puzzle: Puzzle) -> Recipe:
    usual = recipe_for(PRESET_OF[arch], puzzle, batch_size=BATCH_SIZE)
    return replace(usual, lr_min_ratio=1.0, warmup_samples=WARMUP)


def num_parameters(config: HRMConfig) -> int:
    with torch.device("meta"):
        return HRM(config).num_parameters


def _trained(
    config: HRMConfig, recipe: Recipe, puzzle: Puzzle, data: Path, cpu_s: float
) -> tuple[int, Evaluation]:
    """Train for the given CPU seconds; return the number of samples and the evaluation."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    training = batches.open_source(data, "train", puzzle)
    held_out = batches.open_source(data, "test", puzzle)
    feed = batches.Feed(training, puzzle, seed=recipe.seed, augment=recipe.augment)
    trainer = loop.Trainer(HRM(config), feed, recipe, hardware.PRESETS["cpu"])
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        trainer.step()
    rows = held_out.rows(np.arange(len(held_out)))
    evaluation = evaluate(trainer.averaged_model(), puzzle, rows)
    return trainer.progress.samples, evaluation


def save(folder: Path, rows: Sequence[Row]) -> None:
    """Write the table as JSON and Markdown, and a picture of the exact solves."""
    folder.mkdir(parents=True, exist_ok=True)
    table = json.dumps(rows, indent=2) + "\n"
    (folder / "compare.json").write_text(table, encoding="utf-8")
    (folder / "compare.md").write_text(markdown(COLUMNS, rows), encoding="utf-8")
    _picture(rows).savefig(folder / "compare.png", dpi=130)


def _picture(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="tight")
    axes = figure.subplots()
    for arch in ARCHS:
        puzzles: list[str] = []
        exact: list[float] = []
        for row in rows:
            if row["arch"] == arch:
                puzzles.append(row["puzzle"])
                exact.append(np.mean(row["exact"]))
        axes.plot(puzzles, exact, "o:", label=arch)
    axes.set(ylabel="exact solves of held-out puzzles, %", ylim=(-2, 102))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
