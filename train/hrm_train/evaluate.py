"""How good a model is on held-out puzzles: after each number of segments, and under its own halting.

Shapes: B batch, T tokens, S segments.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import IGNORE
from hrm_puzzles.puzzle import RIGHT, Puzzle, Voting
from hrm_train import recipe, window
from hrm_train.batches import Batch, SplitSource

_Figures = dict[str, NDArray[Any]]
SHOWN_TRIALS = 2  # ARC allows two attempts; scores with more, as published, are in the record only
Kind = Literal["fast", "whole"]
FAST_SHARE = 10  # one puzzle in ten
LEAST_FAST = 128  # fewer say too little; a test split smaller than this is evaluated whole each time
CURVES = ("exact", "proven", "accuracy", "cells", "halting")
FIGURES = ("segments", "halted_exact", "loss", "score", "num_puzzles", "proof_exists")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Shares of the puzzles by number of segments (index 0 is one segment), and single figures."""

    num_puzzles: int
    proof_exists: bool
    exact: tuple[float, ...]  # every counted cell is right
    proven: tuple[float, ...]  # the puzzle's own check proved an answer, at any segment so far; else zeros
    accuracy: tuple[float, ...]  # right cells among those counted
    cells: tuple[float, ...]  # right cells among those that were open
    halting: tuple[float, ...]  # (q_halt >= 0) == exact, the published halting accuracy
    segments: float  # mean, where the model itself halts
    halted_exact: float  # share, where the model itself halts
    loss: float  # of the answers after the last segment
    pass_at: Mapping[int, float]  # k: tasks whose answer is among the k grids most voted for, where variants vote

    @property
    def score(self) -> float:
        """What the best checkpoint has most of: proven puzzles, or exact ones where no proof exists."""
        return self.proven[-1] if self.proof_exists else self.exact[-1]

    def summary(self) -> str:
        counts = sorted({1, min(4, len(self.exact)), len(self.exact)})
        exact = "/".join(f"{100 * self.exact[count - 1]:.1f}" for count in counts)
        proven = f", proven {100 * self.proven[-1]:.1f} %" if self.proof_exists else ""
        return (
            f"exact {exact} % after {'/'.join(map(str, counts))} segments{proven}, open cells "
            f"{100 * self.cells[-1]:.1f} %; halts by itself after {self.segments:.1f} segments with "
            f"{100 * self.halted_exact:.1f} % exact ({self.num_puzzles} puzzles)"
            + "".join(f"; pass@{k} {100 * share:.1f} %" for k, share in self.pass_at.items() if k <= SHOWN_TRIALS)
        )


@torch.no_grad()
def evaluate(
    model: HRM,
    puzzle: Puzzle,
    rows: Batch,
    *,
    batch_size: int = 128,
    loss: recipe.LossKind = "softmax",
    identifiers: Sequence[str] = (),
    between_batches: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Runs every row through all segments; rows without any counted cell are left out.

    `identifiers` name the puzzle ids, so that variants of one task can vote.
    `between_batches` is called before each batch; what it raises ends the evaluation.
    """
    has_label_B = (rows.labels_BT != IGNORE).any(1)
    if not has_label_B.any():
        raise ValueError("no held-out puzzle has an answer to compare with; validate on a split that has labels")
    rows = Batch(*(part[has_label_B] for part in rows))
    parts: list[_Figures] = []
    for start in range(0, len(rows.tokens_BT), batch_size):
        between_batches()
        parts.append(_rollout(model, puzzle, Batch(*(part[start : start + batch_size] for part in rows)), loss))
    found = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    pass_at: Mapping[int, float] = {}
    if identifiers and isinstance(puzzle, Voting):
        names = [identifiers[int(number)] for number in rows.puzzle_ids_B.tolist()]
        pass_at = puzzle.pass_at(names, rows.tokens_BT, rows.labels_BT, found["answers"][-1], found["q_halt"][-1])
    wants_SB = found["margin"] > 0
    wants_SB[-1] = True
    halted_at_B = wants_SB.argmax(0)
    return Evaluation(
        **{name: tuple(found[name].mean(1).tolist()) for name in CURVES},
        num_puzzles=len(halted_at_B),
        proof_exists=puzzle.proof_exists,
        segments=float(halted_at_B.mean()) + 1,
        halted_exact=float(np.take_along_axis(found["exact"], halted_at_B[None], axis=0).mean()),
        loss=float(found["loss"].mean()),
        pass_at=pass_at,
    )


def _rollout(model: HRM, puzzle: Puzzle, rows: Batch, loss: recipe.LossKind) -> _Figures:
    """What every row did: figures [S, B], and of the last segment alone the loss [1, B] and the answers [1, B, T]."""
    device = model.high_init.device
    tokens_BT, labels_BT, ids_B = (torch.from_numpy(part).to(device) for part in rows)
    carry = model.start(len(tokens_BT))
    proven_B = np.zeros(len(tokens_BT), dtype=np.bool_)
    answers_BT = np.full(rows.tokens_BT.shape, -1, dtype=np.int32)
    seen: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for _ in range(model.config.max_segments):
        output = model.segment(carry, tokens_BT, ids_B)
        carry, last_BT = output.carry, answers_BT
        answers_BT = output.logits_BTV.argmax(-1).cpu().numpy().astype(np.int32)
        new_B = ~proven_B & (answers_BT != last_BT).any(1)  # a check can be costly: only an answer that is new
        if puzzle.proof_exists and new_B.any():
            proven_B[new_B] = puzzle.check_BT(rows.tokens_BT[new_B], answers_BT[new_B]) == RIGHT
        seen["answers"].append(answers_BT)
        seen["proven"].append(proven_B.copy())
        figures = {"margin": model.margin(output), "q_halt": output.q_halt_B}
        figures["loss"] = window.answer_loss_B(output.logits_BTV, labels_BT, loss)
        for name, values_B in figures.items():
            seen[name].append(values_B.double().cpu().numpy())
    found = {name: np.stack(values) for name, values in seen.items()}
    counted_BT, right_SBT = rows.labels_BT != IGNORE, found["answers"] == rows.labels_BT
    exact_SB = (right_SBT | ~counted_BT).all(-1)
    return {
        **found,
        "exact": exact_SB,
        "accuracy": _share(right_SBT, counted_BT),
        "cells": _share(right_SBT, (rows.tokens_BT != rows.labels_BT) & counted_BT),
        "halting": (found["q_halt"] >= 0) == exact_SB,
        "loss": found["loss"][-1:],
        "answers": found["answers"][-1:],
    }


def _share(right_SBT: NDArray[np.bool_], among_BT: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Right cells among some; 1 where there are none."""
    num_B = among_BT.sum(-1)
    return np.where(num_B > 0, (right_SBT & among_BT).sum(-1) / np.maximum(1, num_B), 1.0)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The same seeded puzzles at every validation."""

    whole: Batch
    fast: Batch | None  # where the whole set is not small
    identifiers: tuple[str, ...] = ()  # of the puzzle ids, where variants of a task vote


def held_out(source: SplitSource, most: int, seed: int) -> HeldOut:
    """At most `most` puzzles of a test split as the whole set, and the tenth of them (never fewer than LEAST_FAST)."""
    num_whole = min(most, len(source))
    num_fast = max(LEAST_FAST, num_whole // FAST_SHARE)
    order = np.random.default_rng((seed, 1)).permutation(len(source))
    fast = source.rows(np.sort(order[:num_fast])) if num_fast < num_whole else None
    identifiers = source.identifiers() if isinstance(source.puzzle, Voting) else ()
    return HeldOut(whole=source.rows(np.sort(order[:num_whole])), fast=fast, identifiers=identifiers)
