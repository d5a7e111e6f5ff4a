"""How good a model is on held-out puzzles: after each number of segments, and under its own halting.

Shapes: B batch, T tokens, S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrm_model.hrm import HRM
from hrm_puzzles.arc.voting import Voting
from hrm_puzzles.data.datasets import IGNORE
from hrm_puzzles.puzzle import RIGHT, Puzzle
from hrm_train.batches import Rows
from hrm_train.losses import LossKind, answer_loss_B

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
SHOWN_TRIALS = 2
"""ARC allows two attempts; the published scores with more stand in the record."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Shares of the puzzles by number of segments (index 0 is one segment), then single figures.

    exact: every counted cell is right. proven: the puzzle's own check proved an answer, at any segment so far (all zero
    where `proof_exists` is false). accuracy: right cells among those counted. cells: right cells among those that were
    open. halting: (q_halt >= 0) == exact, the published halting accuracy. `segments` and `halted_exact` are the mean
    number of segments and the exact share where the model itself halts; `loss` is the answer loss after the last.
    `pass_at` k: tasks whose answer is among the k grids most voted for, of a puzzle whose variants vote (else empty).
    """

    num_puzzles: int
    proof_exists: bool
    exact: tuple[float, ...]
    proven: tuple[float, ...]
    accuracy: tuple[float, ...]
    cells: tuple[float, ...]
    halting: tuple[float, ...]
    segments: float
    halted_exact: float
    loss: float
    proven_B: Bools
    pass_at: Mapping[int, float]

    @property
    def score(self) -> float:
        """What the best checkpoint has most of: proven puzzles, or exact ones where no proof exists."""
        return self.proven[-1] if self.proof_exists else self.exact[-1]

    def at(self, segments: int) -> dict[str, float]:
        index = min(segments, len(self.exact)) - 1
        return {name: getattr(self, name)[index] for name in ("exact", "proven", "accuracy", "cells", "halting")}

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


class _Rollout(NamedTuple):
    """What every row did, segment by segment."""

    exact_SB: Bools
    proven_SB: Bools
    accuracy_SB: Floats
    cells_SB: Floats
    margin_SB: Floats
    q_halt_SB: Floats
    loss_1B: Floats
    answers_1BT: NDArray[np.int32]


@torch.no_grad()
def evaluate(
    model: HRM,
    puzzle: Puzzle,
    rows: Rows,
    *,
    batch_size: int = 128,
    loss: LossKind = "softmax",
    identifiers: Sequence[str] = (),
    between_batches: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Runs every row through all segments; rows without any counted cell are left out.

    `identifiers` name the puzzle ids, so that variants of one task can vote.
    `between_batches` is called before each batch; what it raises ends the evaluation.
    """
    rows = _counted(rows)
    parts: list[_Rollout] = []
    for start in range(0, len(rows.tokens_BT), batch_size):
        between_batches()
        parts.append(_rollout(model, puzzle, Rows(*(part[start : start + batch_size] for part in rows)), loss))
    rollout = _Rollout(*(np.concatenate(kind, axis=1) for kind in zip(*parts, strict=True)))
    return replace(_summarised(rollout, puzzle), pass_at=_pass_at(puzzle, rows, rollout, identifiers))


def _pass_at(puzzle: Puzzle, rows: Rows, rollout: _Rollout, identifiers: Sequence[str]) -> Mapping[int, float]:
    if not identifiers or not isinstance(puzzle, Voting):
        return {}
    names = [identifiers[int(number)] for number in rows.puzzle_ids_B.tolist()]
    return puzzle.pass_at(names, rows.tokens_BT, rows.labels_BT, rollout.answers_1BT[0], rollout.q_halt_SB[-1])


def _counted(rows: Rows) -> Rows:
    has_label_B = (rows.labels_BT != IGNORE).any(1)
    if not has_label_B.any():
        raise ValueError("no held-out puzzle has an answer to compare with; validate on a split that has labels")
    return Rows(*(part[has_label_B] for part in rows))


def _summarised(rollout: _Rollout, puzzle: Puzzle) -> Evaluation:
    wants_SB = rollout.margin_SB > 0
    wants_SB[-1] = True
    halted_at_B = wants_SB.argmax(0)
    halted_exact_B = np.take_along_axis(rollout.exact_SB, halted_at_B[None], axis=0)
    return Evaluation(
        num_puzzles=rollout.exact_SB.shape[1],
        proof_exists=puzzle.proof_exists,
        exact=_by_segment(rollout.exact_SB),
        proven=_by_segment(rollout.proven_SB),
        accuracy=_by_segment(rollout.accuracy_SB),
        cells=_by_segment(rollout.cells_SB),
        halting=_by_segment((rollout.q_halt_SB >= 0) == rollout.exact_SB),
        segments=float(halted_at_B.mean()) + 1,
        halted_exact=float(halted_exact_B.mean()),
        loss=float(rollout.loss_1B.mean()),
        proven_B=rollout.proven_SB[-1],
        pass_at={},
    )


def _by_segment(values_SB: NDArray[Any]) -> tuple[float, ...]:
    return tuple(values_SB.mean(1).tolist())


def _rollout(model: HRM, puzzle: Puzzle, rows: Rows, loss: LossKind) -> _Rollout:
    device = model.high_init.device
    tokens_BT, labels_BT, ids_B = (torch.from_numpy(part).to(device) for part in rows)
    carry = model.start(len(tokens_BT))
    verdicts = _Verdicts(puzzle, rows.tokens_BT)
    segments: list[_Rollout] = []
    for _ in range(model.config.max_segments):
        output = model.segment(carry, tokens_BT, ids_B)
        carry = output.carry
        answers_BT = output.logits_BTV.argmax(-1).cpu().numpy().astype(np.int32)
        segments.append(
            _Rollout(
                *_compared(answers_BT, rows, verdicts),
                margin_SB=_floats(model.margin(output)),
                q_halt_SB=_floats(output.q_halt_B),
                loss_1B=_floats(answer_loss_B(output.logits_BTV, labels_BT, loss)),
                answers_1BT=answers_BT,
            )
        )
    last = segments[-1]
    stacked = _Rollout(*(np.stack(kind) for kind in zip(*segments, strict=True)))
    return stacked._replace(loss_1B=last.loss_1B[None], answers_1BT=last.answers_1BT[None])


def _compared(answers_BT: NDArray[np.int32], rows: Rows, verdicts: _Verdicts) -> tuple[Bools, Bools, Floats, Floats]:
    counted_BT = rows.labels_BT != IGNORE
    open_BT = (rows.tokens_BT != rows.labels_BT) & counted_BT
    right_BT = answers_BT == rows.labels_BT
    proven_B = verdicts.see(answers_BT)
    return (right_BT | ~counted_BT).all(1), proven_B, _share_B(right_BT, counted_BT), _share_B(right_BT, open_BT)


def _share_B(right_BT: Bools, among_BT: Bools) -> Floats:
    """1 where there is nothing to be right about."""
    num_B = among_BT.sum(1)
    return np.where(num_B > 0, (right_BT & among_BT).sum(1) / np.maximum(1, num_B), 1.0)


def _floats(values_B: Tensor) -> Floats:
    return values_B.double().cpu().numpy()


class _Verdicts:
    """Which rows are proven so far; a check can be costly, so an answer is checked only when it is new."""

    def __init__(self, puzzle: Puzzle, tokens_BT: NDArray[np.int32]) -> None:
        self._puzzle, self._tokens_BT = puzzle, tokens_BT
        self._proven_B = np.zeros(len(tokens_BT), dtype=np.bool_)
        self._last_BT: NDArray[np.int32] | None = None

    def see(self, answers_BT: NDArray[np.int32]) -> Bools:
        """The proven rows after these answers, bool [B]."""
        new_B = ~self._proven_B
        if self._last_BT is not None:
            new_B &= (answers_BT != self._last_BT).any(1)
        self._last_BT = answers_BT
        if self._puzzle.proof_exists and new_B.any():
            self._proven_B[new_B] = self._puzzle.check_BT(self._tokens_BT[new_B], answers_BT[new_B]) == RIGHT
        return self._proven_B.copy()
