"""How good a model is on held-out puzzles: after each number of segments, and under its own halting.

Shapes: B batch, T tokens, S segments.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import IGNORE
from hrm_puzzles.puzzle import RIGHT, Puzzle, Voting
from hrm_train.batches import Batch, SplitSource, validation_rows
from hrm_train.recipe import LossKind
from hrm_train.window import answer_loss_B

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
SHOWN_TRIALS = 2
"""ARC allows two attempts; scores with more, as published, are in the record only."""


Kind = Literal["fast", "whole"]
VALIDATIONS = "validation.ndjson"
FAST_SHARE = 10  # one puzzle in ten
LEAST_FAST = 128  # fewer say too little; a test split smaller than this is evaluated whole each time
CURVES = ("exact", "proven", "accuracy", "cells", "halting")
FIGURES = ("segments", "halted_exact", "loss", "score", "num_puzzles", "proof_exists")


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
        return {name: getattr(self, name)[index] for name in CURVES}

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
    rows: Batch,
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
        parts.append(_rollout(model, puzzle, Batch(*(part[start : start + batch_size] for part in rows)), loss))
    rollout = _Rollout(*(np.concatenate(kind, axis=1) for kind in zip(*parts, strict=True)))
    return replace(_summarised(rollout, puzzle), pass_at=_pass_at(puzzle, rows, rollout, identifiers))


def _pass_at(puzzle: Puzzle, rows: Batch, rollout: _Rollout, identifiers: Sequence[str]) -> Mapping[int, float]:
    if not identifiers or not isinstance(puzzle, Voting):
        return {}
    names = [identifiers[int(number)] for number in rows.puzzle_ids_B.tolist()]
    return puzzle.pass_at(names, rows.tokens_BT, rows.labels_BT, rollout.answers_1BT[0], rollout.q_halt_SB[-1])


def _counted(rows: Batch) -> Batch:
    has_label_B = (rows.labels_BT != IGNORE).any(1)
    if not has_label_B.any():
        raise ValueError("no held-out puzzle has an answer to compare with; validate on a split that has labels")
    return Batch(*(part[has_label_B] for part in rows))


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


def _rollout(model: HRM, puzzle: Puzzle, rows: Batch, loss: LossKind) -> _Rollout:
    device = model.high_init.device
    tokens_BT, labels_BT, ids_B = (torch.from_numpy(part).to(device) for part in rows)
    carry = model.start(len(tokens_BT))
    proven_B = np.zeros(len(tokens_BT), dtype=np.bool_)
    last_BT = np.full(rows.tokens_BT.shape, -1)
    segments: list[_Rollout] = []
    for _ in range(model.config.max_segments):
        output = model.segment(carry, tokens_BT, ids_B)
        carry = output.carry
        answers_BT = output.logits_BTV.argmax(-1).cpu().numpy().astype(np.int32)
        new_B = ~proven_B & (answers_BT != last_BT).any(1)  # a check can be costly: only an answer that is new
        if puzzle.proof_exists and new_B.any():
            proven_B[new_B] = puzzle.check_BT(rows.tokens_BT[new_B], answers_BT[new_B]) == RIGHT
        last_BT = answers_BT
        exact_B, accuracy_B, cells_B = _compared(answers_BT, rows)
        segments.append(
            _Rollout(
                exact_SB=exact_B,
                proven_SB=proven_B.copy(),
                accuracy_SB=accuracy_B,
                cells_SB=cells_B,
                margin_SB=_floats(model.margin(output)),
                q_halt_SB=_floats(output.q_halt_B),
                loss_1B=_floats(answer_loss_B(output.logits_BTV, labels_BT, loss)),
                answers_1BT=answers_BT,
            )
        )
    last = segments[-1]
    stacked = _Rollout(*(np.stack(kind) for kind in zip(*segments, strict=True)))
    return stacked._replace(loss_1B=last.loss_1B[None], answers_1BT=last.answers_1BT[None])


def _compared(answers_BT: NDArray[np.int32], rows: Batch) -> tuple[Bools, Floats, Floats]:
    """Which rows are exact, and the shares of right cells among those counted and among those that were open."""
    counted_BT = rows.labels_BT != IGNORE
    open_BT = (rows.tokens_BT != rows.labels_BT) & counted_BT
    right_BT = answers_BT == rows.labels_BT
    return (right_BT | ~counted_BT).all(1), _share_B(right_BT, counted_BT), _share_B(right_BT, open_BT)


def _share_B(right_BT: Bools, among_BT: Bools) -> Floats:
    """1 where there is nothing to be right about."""
    num_B = among_BT.sum(1)
    return np.where(num_B > 0, (right_BT & among_BT).sum(1) / np.maximum(1, num_B), 1.0)


def _floats(values_B: Tensor) -> Floats:
    return values_B.double().cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The same seeded puzzles at every validation of a run; `fast` is None where the whole set is small.

    `identifiers` name the puzzle ids of the whole set where variants of a task vote.
    """

    whole: Batch
    fast: Batch | None
    identifiers: tuple[str, ...] = ()


def held_out(source: SplitSource, most: int, seed: int) -> HeldOut:
    """At most `most` puzzles of a test split as the whole set, and the tenth of them (never fewer than LEAST_FAST)."""
    num_whole = min(most, len(source))
    num_fast = max(LEAST_FAST, num_whole // FAST_SHARE)
    fast = validation_rows(source, num_fast, seed) if num_fast < num_whole else None
    identifiers = source.identifiers() if isinstance(source.puzzle, Voting) else ()
    return HeldOut(whole=validation_rows(source, num_whole, seed), fast=fast, identifiers=identifiers)


class History:
    """The validations of a run up to a step."""

    def __init__(self, run: Path) -> None:
        self._file = run / VALIDATIONS

    def add(self, kind: Kind, step: int, samples: int, evaluation: Evaluation, **more: float) -> None:
        curves = {name: [round(value, 5) for value in getattr(evaluation, name)] for name in CURVES}
        figures = {name: getattr(evaluation, name) for name in FIGURES}
        more |= {f"pass_at_{k}": round(share, 5) for k, share in evaluation.pass_at.items()}
        where = {"time": time.time(), "kind": kind, "step": step, "samples": samples}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**where, **more, **figures, **curves}) + "\n")

    def rows(self, until_step: int | None = None) -> list[dict[str, Any]]:
        """In the order of their steps, the latest of each step and kind."""
        found = {(row["step"], row["kind"]): row for row in read_lines(self._file)}
        ordered = sorted(found.values(), key=lambda row: (row["step"], row["kind"]))
        return [row for row in ordered if until_step is None or row["step"] <= until_step]

    def best(self, kind: Kind, until_step: int | None = None) -> dict[str, Any] | None:
        """The first row with the highest score."""
        of_kind = [row for row in self.rows(until_step) if row["kind"] == kind]
        return max(of_kind, key=lambda row: row["score"], default=None)

    def lowest_loss(self, until_step: int) -> dict[str, Any] | None:
        whole = [row for row in self.rows(until_step) if row["kind"] == "whole"]
        return min(whole, key=lambda row: row["loss"], default=None)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file that is being written: none where it is missing, and a torn line is passed over."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
