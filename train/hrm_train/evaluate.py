"""Score a model on held-out puzzles, by number of segments and with its own halting.

Shapes: B batch, T tokens, S segments.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Event
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_host.progress import duration
from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import IGNORE, Batch, Int32Array, Split
from hrm_puzzles.puzzle import RIGHT, Puzzle, Voting
from hrm_train import distributed, recipe, window

_Figures = dict[str, NDArray[Any]]
Kind = Literal["fast", "whole"]
BATCH_SIZE = 128  # puzzles that run at once
LEAST_FAST = 128  # puzzles; fewer show too little, so a smaller split is evaluated whole
CURVES = ("exact", "proven", "cells", "halting")
FIGURES = ("segments", "halted_exact", "loss", "score", "num_puzzles", "proof_exists")
ROW = "{:>8} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7}"
HEADER = ROW.format("step", "exact", "proven", "cells", "loss", "time", "puzzles")


class Stopped(Exception):  # noqa: N818  # a request, not an error
    """A signal asked the run to end."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Shares of the puzzles by number of segments (index 0: one segment), and single figures."""

    num_puzzles: int
    proof_exists: bool
    exact: tuple[float, ...]  # share of puzzles whose counted cells are all right
    proven: tuple[float, ...]  # share of proven puzzles; zeros if no proof exists
    cells: tuple[float, ...]  # share of right cells among the open ones
    halting: tuple[float, ...]  # (q_halt >= 0) == exact, the published halting accuracy
    segments: float  # mean number if the model itself halts
    halted_exact: float  # share of exact puzzles if the model itself halts
    loss: float  # loss of the answers after the last segment
    pass_at: Mapping[int, float]  # k: share of tasks right in k trials, by votes
    rows: Batch  # the puzzles
    answers_BT: Int32Array  # after the last segment

    @property
    def score(self) -> float:
        """Share of proven puzzles, or of exact ones if no proof exists."""
        if self.proof_exists:
            return self.proven[-1]
        return self.exact[-1]

    def row(self, step: int, elapsed_s: float) -> str:
        """The figures after the last segment, below HEADER; at most 80 columns wide."""
        proven = _percent(self.proven[-1]) if self.proof_exists else "–"
        cells = [step, _percent(self.exact[-1]), proven, _percent(self.cells[-1])]
        row = ROW.format(*cells, f"{self.loss:.3g}", duration(elapsed_s), self.num_puzzles)
        official = [k for k in self.pass_at if k <= 2]  # ARC allows two attempts
        if official:
            shares = "/".join(f"{100 * self.pass_at[k]:.1f}" for k in official)
            row += f" pass@{'/'.join(map(str, official))} {shares} %"
        return row


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@torch.no_grad()
def evaluate(
    model: HRM,
    puzzle: Puzzle,
    rows: Batch,
    *,
    loss: recipe.LossKind = "softmax",
    identifiers: Sequence[str] = (),
    stop: Event | None = None,
) -> Evaluation:
    """Runs every row through all segments; skips rows without any counted cell.

    Every rank must call it with the same rows. Each runs its share, and all return the same.
    `identifiers` name the puzzle ids, so variants of a task can vote. Raises Stopped on all ranks
    if `stop` is set on any of them.
    """
    has_label_B = (rows.labels_BT != IGNORE).any(1)
    if not has_label_B.any():
        raise ValueError(
            "no held-out puzzle has an answer to compare with; validate on a split that has labels"
        )
    rows = rows.rows(has_label_B)
    found = _rollouts(model, puzzle, rows, loss, stop)
    curves: dict[str, tuple[float, ...]] = {}
    for name in CURVES:
        shares_S = found[name].mean(1)
        curves[name] = tuple(shares_S.tolist())
    wants_SB = found["margin"] > 0
    wants_SB[-1] = True
    halted_at_B = wants_SB.argmax(0)
    halted_exact_1B = np.take_along_axis(found["exact"], halted_at_B[None], axis=0)
    return Evaluation(
        **curves,
        num_puzzles=len(halted_at_B),
        proof_exists=puzzle.proof_exists,
        segments=float(halted_at_B.mean()) + 1,
        halted_exact=float(halted_exact_1B.mean()),
        loss=float(found["loss"].mean()),
        pass_at=_pass_at(puzzle, rows, found, identifiers),
        rows=rows,
        answers_BT=found["answers"][-1],
    )


def _rollouts(
    model: HRM,
    puzzle: Puzzle,
    rows: Batch,
    loss: recipe.LossKind,
    stop: Event | None,
) -> _Figures:
    """The results of all batches side by side; each rank runs its share of the rows."""
    ranks = distributed.ranks()
    mine = np.array_split(np.arange(len(rows.tokens_BT)), ranks.world)[ranks.rank]
    parts: list[_Figures] = []
    for begin in range(0, len(mine), BATCH_SIZE):
        if stop is not None and stop.is_set():
            break
        batch = rows.rows(mine[begin : begin + BATCH_SIZE])
        parts.append(_rollout(model, puzzle, batch, loss))
    if ranks.any(stop is not None and stop.is_set()):
        raise Stopped
    arrays: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for part in chain.from_iterable(ranks.gathered(parts)):
        for name, array in part.items():
            arrays[name].append(array)
    return {name: np.concatenate(values, axis=1) for name, values in arrays.items()}


def _pass_at(
    puzzle: Puzzle, rows: Batch, found: _Figures, identifiers: Sequence[str]
) -> Mapping[int, float]:
    if not identifiers or not isinstance(puzzle, Voting):
        return {}
    names = [identifiers[int(number)] for number in rows.puzzle_ids_B.tolist()]
    answers_BT = found["answers"][-1]
    return puzzle.pass_at(names, rows.tokens_BT, rows.labels_BT, answers_BT, found["q_halt"][-1])


def _rollout(model: HRM, puzzle: Puzzle, rows: Batch, loss: recipe.LossKind) -> _Figures:
    """The results of every row: figures [S, B].

    Loss [1, B] and answers [1, B, T] are those of the last segment.
    """
    device = model.high_init.device
    tokens_BT = torch.from_numpy(rows.tokens_BT).to(device)
    labels_BT = torch.from_numpy(rows.labels_BT).to(device)
    ids_B = torch.from_numpy(rows.puzzle_ids_B).to(device)
    carry = model.start(len(tokens_BT))
    proven_B = np.zeros(len(tokens_BT), dtype=np.bool_)
    answers_BT = np.full(rows.tokens_BT.shape, -1, dtype=np.int32)
    seen: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for _ in range(model.config.max_segments):
        output = model.segment(carry, tokens_BT, ids_B)
        carry = output.carry
        last_BT = answers_BT
        answers_BT = output.logits_BTV.argmax(-1).cpu().numpy().astype(np.int32)
        # A check can be costly, so only new answers are checked.
        new_B = ~proven_B & (answers_BT != last_BT).any(1)
        if puzzle.proof_exists and new_B.any():
            verdict_B = puzzle.check_BT(rows.tokens_BT[new_B], answers_BT[new_B])
            proven_B[new_B] = verdict_B == RIGHT
        loss_B = window.answer_loss_B(output.logits_BTV, labels_BT, loss)
        seen["answers"].append(answers_BT)
        seen["proven"].append(proven_B.copy())
        seen["margin"].append(_numbers(model.margin(output)))
        seen["q_halt"].append(_numbers(output.q_halt_B))
        seen["loss"].append(_numbers(loss_B))
    return _scored(rows, {name: np.stack(values) for name, values in seen.items()})


def _numbers(values_B: torch.Tensor) -> NDArray[np.float64]:
    return values_B.double().cpu().numpy()


def _scored(rows: Batch, found: _Figures) -> _Figures:
    """Adds the scores of all segments; of loss and answers only the last segment stays."""
    counted_BT = rows.labels_BT != IGNORE
    open_BT = (rows.tokens_BT != rows.labels_BT) & counted_BT
    right_SBT = found["answers"] == rows.labels_BT
    exact_SB = (right_SBT | ~counted_BT).all(-1)
    num_open_B = open_BT.sum(-1)
    num_right_SB = (right_SBT & open_BT).sum(-1)
    share_SB = num_right_SB / np.maximum(1, num_open_B)
    return {
        **found,
        "exact": exact_SB,
        "cells": np.where(num_open_B > 0, share_SB, 1.0),
        "halting": (found["q_halt"] >= 0) == exact_SB,
        "loss": found["loss"][-1:],
        "answers": found["answers"][-1:],
    }


class HeldOut(NamedTuple):
    """The same seeded puzzles at every validation."""

    whole: Batch
    fast: Batch | None  # None if the whole set is small
    identifiers: Sequence[str] = ()  # names of the puzzle ids if variants of a task vote


def held_out(source: Split, most: int, seed: int) -> HeldOut:
    """Draws at most `most` puzzles as the whole set, and a tenth of them (at least LEAST_FAST)."""
    num_whole = min(most, len(source))
    num_fast = max(LEAST_FAST, num_whole // 10)
    order = np.random.default_rng((seed, 1)).permutation(len(source))
    whole = source.rows(np.sort(order[:num_whole]))
    fast = None
    if num_fast < num_whole:
        fast = source.rows(np.sort(order[:num_fast]))
    if not isinstance(source.puzzle, Voting):
        return HeldOut(whole, fast)
    return HeldOut(whole, fast, source.identifiers())
