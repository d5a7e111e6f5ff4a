"""Which held-out puzzles are looked at when, and the record of what was seen: `validation.ndjson` in the run.

A fixed tenth is looked at often; all of them only when the tenth did better than ever, at long intervals and at the
end. A killed run writes some lines twice: the last of each step counts, and none beyond the step it goes on from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hrm_puzzles.arc.voting import Voting
from hrm_train.batches import Rows
from hrm_train.dataset import SplitSource, validation_rows
from hrm_train.evaluate import Evaluation

Kind = Literal["fast", "whole"]
VALIDATIONS = "validation.ndjson"
FAST_SHARE = 10  # one puzzle in ten
LEAST_FAST = 128  # fewer say too little; a test split smaller than this is looked at whole each time
CURVES = ("exact", "proven", "accuracy", "cells", "halting")
FIGURES = ("segments", "halted_exact", "loss", "score", "num_puzzles", "proof_exists")


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The same seeded puzzles at every validation of a run; `fast` is None where the whole set is small.

    `identifiers` name the puzzle ids of the whole set where variants of a task vote.
    """

    whole: Rows
    fast: Rows | None
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
        return max(
            (row for row in self.rows(until_step) if row["kind"] == kind), key=lambda row: row["score"], default=None
        )

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
