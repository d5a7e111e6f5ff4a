"""Train one model on 1/8, 1/4, 1/2 and all of the data with equal samples, and draw a curve."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hrm_benchmarks.report import Row, markdown
from hrm_model.hrm import HRM
from hrm_puzzles.puzzle import Puzzle
from hrm_train import batches, hardware, loop
from hrm_train.evaluate import evaluate
from hrm_train.recipe import Recipe, config_for, recipe_for

PARTS = (8, 4, 2, 1)  # the data is divided by each of these
BATCH_SIZE = 16
WARMUP_SHARE = 0.1  # share of the samples
NAME = "scaling"
COLUMNS = {
    "of the data": "{share}",
    "puzzles": "{puzzles:,}",
    "samples": "{samples:,}",
    "steps": "{steps:,}",
    "exact %": "{exact:.1f}",
    "proven %": "{proven:.1f}",
    "open cells %": "{cells:.1f}",
}
LEGEND = "held-out puzzles after all segments; sample: one puzzle for one segment"


class PartOfSource(batches.SplitSource):
    """The first groups of a shuffled training split; a larger part contains the smaller ones."""

    def __init__(self, whole: batches.SplitSource, num_groups: int, seed: int) -> None:
        self.__dict__.update(whole.__dict__)
        order = np.random.default_rng(seed).permutation(whole.num_groups)
        self._chosen = np.sort(order[:num_groups])

    @property
    def num_groups(self) -> int:
        return len(self._chosen)

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        return super().pick(self._chosen[groups_B], chance_B2)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A model, a data set, and the number of samples of every training."""

    puzzle: Puzzle
    data: Path
    preset: str
    num_samples: int
    symmetries: bool
    seed: int

    def rows(self) -> Iterator[Row]:
        """Yield a row for each part of the data, the smallest first."""
        whole = batches.open_source(self.data, "train", self.puzzle)
        if whole.num_groups < PARTS[0]:
            raise ValueError(
                f"{self.data} holds {whole.num_groups} puzzles for training; "
                f"give at least {PARTS[0]}, so that an eighth is at least one puzzle"
            )
        for part in PARTS:
            source = PartOfSource(whole, whole.num_groups // part, self.seed)
            share = "all"
            if part > 1:
                share = f"1/{part}"
            yield {"share": share, **self._measure(source)}

    def recipe(self) -> Recipe:
        usual = recipe_for(self.preset, self.puzzle, BATCH_SIZE)
        return replace(
            usual,
            seed=self.seed,
            augment=self.symmetries,
            total_samples=self.num_samples,
            warmup_samples=round(WARMUP_SHARE * self.num_samples),
        )

    def _measure(self, source: batches.SplitSource) -> Row:
        """Train on these puzzles, and evaluate the averaged weights on the test split."""
        recipe = self.recipe()
        torch.manual_seed(self.seed)
        torch.set_num_threads(1)
        model = HRM(config_for(self.preset, self.puzzle, source.num_puzzle_ids))
        feed = batches.Feed(source, self.puzzle, seed=self.seed, augment=recipe.augment)
        trainer = loop.Trainer(model, feed, recipe, hardware.PRESETS["cpu"])
        while trainer.progress.samples < recipe.total_samples:
            trainer.step()
        held_out = batches.open_source(self.data, "test", self.puzzle)
        rows = held_out.rows(np.arange(len(held_out)))
        evaluation = evaluate(trainer.averaged_model(), self.puzzle, rows)
        return {
            "puzzles": source.num_groups,
            "samples": trainer.progress.samples,
            "steps": trainer.progress.step,
            "held_out": evaluation.num_puzzles,
            "exact": 100 * evaluation.exact[-1],
            "proven": 100 * evaluation.proven[-1],
            "cells": 100 * evaluation.cells[-1],
        }


def save(folder: Path, title: str, rows: Sequence[Row]) -> None:
    """Write the table as JSON and Markdown, and the curve."""
    folder.mkdir(parents=True, exist_ok=True)
    table = json.dumps({"title": title, "runs": rows}, indent=2) + "\n"
    (folder / f"{NAME}.json").write_text(table, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(markdown(COLUMNS, rows), encoding="utf-8")
    _curve(title, rows).savefig(folder / f"{NAME}.png", dpi=130)


def _curve(title: str, rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout="tight")
    axes = figure.subplots()
    puzzles = [row["puzzles"] for row in rows]
    exact = [row["exact"] for row in rows]
    axes.plot(puzzles, exact, "o-")
    axes.set_xscale("log", base=2)
    axes.set_xticks(puzzles, [f"{count:,}" for count in puzzles])
    axes.set(xlabel="puzzles for training", ylabel="exact solves, %", ylim=(-2, 102))
    axes.set_title(title, fontsize=8)
    axes.grid(alpha=0.3)
    return figure
