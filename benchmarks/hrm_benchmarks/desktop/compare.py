"""HRM, TRM, a plain transformer and relational blocks beside each other: the same puzzles, seeds and CPU seconds.

Their widths are chosen for about as many parameters. Each learns on one thread by the recipe of its preset, but for a
rate that stays constant after the warm-up.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hrm_benchmarks.report import Row
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle
from hrm_train import batches, hardware, loop
from hrm_train.evaluate import Evaluation, evaluate
from hrm_train.recipe import Recipe, config_for, recipe_for

ARCHS = {
    "hrm": ("small", {}),
    "trm": ("small", {"arch": "trm", "high_layers": 2, "low_layers": 2}),
    "transformer": ("small", {"arch": "transformer", "max_segments": 1}),
    "relational": ("relational", {}),
}
WIDTHS = range(8, 257, 8)  # of one vector
WARMUP = 2_000  # samples
COLUMNS = [
    ("puzzle", "{puzzle}"),
    ("model", "{arch}"),
    ("parameters", "{parameters:,}"),
    ("samples", "{samples:,}"),
    ("exact %", "{exact}"),
    ("open cells %", "{cells}"),
]
LEGEND = "exact solves and right cells of each seed after all segments; sample: one puzzle for one segment"


def measure(arch: str, data: Path, seeds: Sequence[int], *, cpu_s: float, num_parameters: int) -> Row:
    """Train once for each seed, and evaluate the averaged weights on the test split."""
    puzzle, preset = registry.get(data.name), ARCHS[arch][0]
    config, usual = config_of(arch, puzzle, num_parameters), recipe_for(preset, puzzle, batch_size=32)
    revealed = min(usual.curriculum, puzzle.seq_len // 3)  # the preset's are for 81 cells
    usual = replace(usual, lr_min_ratio=1.0, warmup_samples=WARMUP, curriculum=revealed)
    found = [_trained(config, replace(usual, seed=seed), puzzle, data, cpu_s) for seed in seeds]
    return {
        "puzzle": puzzle.name,
        "arch": arch,
        "parameters": _num_parameters(config),
        "samples": round(np.mean([samples for samples, _ in found])),
        **{name: [round(100 * getattr(seen, name)[-1], 1) for _, seen in found] for name in ("exact", "cells")},
    }


def config_of(arch: str, puzzle: Puzzle, num_parameters: int) -> HRMConfig:
    """The family's sizes at the width that comes closest to so many parameters."""
    preset, changes = ARCHS[arch]
    plain = replace(config_for(preset, puzzle, 1), **changes)
    sized = ("hidden_size", "puzzle_vector_size") if plain.puzzle_vector_size else ("hidden_size",)
    configs = [replace(plain, **dict.fromkeys(sized, plain.num_symbols * width)) for width in WIDTHS]
    return min(configs, key=lambda config: abs(_num_parameters(config) - num_parameters))


def _num_parameters(config: HRMConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in HRM(config).parameters())


def _trained(config: HRMConfig, recipe: Recipe, puzzle: Puzzle, data: Path, cpu_s: float) -> tuple[int, Evaluation]:
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    training, held_out = (batches.open_source(data, split, puzzle) for split in ("train", "test"))
    feed = batches.Feed(training, puzzle, seed=recipe.seed, augment=recipe.augment)
    model = HRM(config)
    trainer = loop.Trainer(model, feed, recipe, hardware.PRESETS["cpu"])
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        trainer.step()
    rows = held_out.rows(np.arange(len(held_out)))
    return trainer.progress.samples, evaluate(trainer.averaged_model(), puzzle, rows)


def save(folder: Path, rows: Sequence[Row]) -> None:
    """The table as JSON and Markdown, and a picture of the exact solves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    lines = [[heading for heading, _ in COLUMNS], ["---"] * len(COLUMNS)]
    lines += [[form.format(**row) for _, form in COLUMNS] for row in rows]
    (folder / "compare.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
    figure = Figure(figsize=(7, 3.6), layout="tight")
    axes = figure.subplots()
    for arch in ARCHS:
        exact = {row["puzzle"]: np.mean(row["exact"]) for row in rows if row["arch"] == arch}
        axes.plot(list(exact), list(exact.values()), "o:", label=arch)
    axes.set(ylabel="exact solves of held-out puzzles, %", ylim=(-2, 102))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "compare.png", dpi=130)
