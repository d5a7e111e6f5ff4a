"""How good a model is on held-out puzzles: exact solves after each number of segments, and solves that carry a proof.

Shapes: B batch, T tokens, S segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_model.hrm import HRM
from hrm_puzzles.puzzle import RIGHT, Puzzle
from hrm_train.batches import Rows


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Shares by number of segments (index 0 is one segment); `proven` counts a proof at any segment so far."""

    num_puzzles: int
    exact: tuple[float, ...]
    cells: tuple[float, ...]
    proven: tuple[float, ...]
    proven_B: NDArray[np.bool_]

    def at(self, segments: int) -> dict[str, float]:
        index = min(segments, len(self.exact)) - 1
        return {"exact": self.exact[index], "proven": self.proven[index], "cells": self.cells[index]}

    def summary(self) -> str:
        counts = sorted({1, 4, len(self.exact)})
        exact = "/".join(f"{100 * self.exact[count - 1]:.1f}" for count in counts)
        return (
            f"exact {exact} % after {'/'.join(map(str, counts))} segments, proven {100 * self.proven[-1]:.1f} %, "
            f"open cells {100 * self.cells[-1]:.1f} %"
        )


@torch.no_grad()
def evaluate(model: HRM, puzzle: Puzzle, rows: Rows, *, batch_size: int = 128) -> Evaluation:
    """Runs every row through all segments; `cells` is the share of right answers among cells that were open."""
    parts = [
        _evaluate_batch(model, puzzle, Rows(*(part[start : start + batch_size] for part in rows)))
        for start in range(0, len(rows.tokens_BT), batch_size)
    ]
    exact_SB, cells_SB, proven_SB = (np.concatenate(kind, axis=1) for kind in zip(*parts, strict=True))
    return Evaluation(
        num_puzzles=exact_SB.shape[1],
        exact=tuple(exact_SB.mean(1).tolist()),
        cells=tuple(cells_SB.mean(1).tolist()),
        proven=tuple(proven_SB.mean(1).tolist()),
        proven_B=proven_SB[-1],
    )


def _evaluate_batch(
    model: HRM, puzzle: Puzzle, rows: Rows
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
    device = model.high_init.device
    tokens_BT = torch.from_numpy(rows.tokens_BT).to(device)
    ids_B = torch.from_numpy(rows.puzzle_ids_B).to(device)
    carry = model.start(len(tokens_BT))
    open_BT = (rows.tokens_BT != rows.labels_BT) & (rows.labels_BT >= 0)
    exact_SB, cells_SB, proven_SB = [], [], []
    proven_B = np.zeros(len(tokens_BT), dtype=np.bool_)
    for _ in range(model.config.max_segments):
        output = model.segment(carry, tokens_BT, ids_B)
        carry = output.carry
        answers_BT = output.logits_BTV.argmax(-1).cpu().numpy()
        right_BT = (answers_BT == rows.labels_BT) | (rows.labels_BT < 0)
        proven_B = proven_B | (puzzle.check_BT(rows.tokens_BT, answers_BT) == RIGHT)
        exact_SB.append(right_BT.all(1))
        cells_SB.append((right_BT & open_BT).sum(1) / np.maximum(1, open_BT.sum(1)))
        proven_SB.append(proven_B)
    return np.stack(exact_SB), np.stack(cells_SB), np.stack(proven_SB)
