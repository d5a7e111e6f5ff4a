"""Votes for an answer where none can be proven, and the published score of ARC: pass@k.

Candidates are ranked as ARC is scored: by number of votes, then by the mean sigmoid of the voters' halting values.
Shapes: N answers, T tokens.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import grid_at, variant_of
from hrm_puzzles.puzzle import Grid, IntArray

TRIALS = (1, 2, 10, 100, 1000)  # the published values of k; ARC itself allows two attempts


@dataclass(kw_only=True)
class Ballot:
    """The votes cast so far, by candidate."""

    _trusts: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])

    def cast(self, candidate: Hashable, q_halt: float) -> None:
        trust = 0.5 * (1 + math.tanh(q_halt / 2))  # a sigmoid that cannot overflow
        self._trusts.setdefault(candidate, []).append(trust)

    def votes(self, candidate: Hashable) -> int:
        return len(self._trusts.get(candidate, ()))

    def ranked(self) -> list[Hashable]:
        """All candidates, the best first; equals in the order in which they were first named."""
        return sorted(self._trusts, key=self.rank, reverse=True)

    def leader(self) -> Hashable | None:
        """Who would win now; None before the first vote."""
        return max(self._trusts, key=self.rank, default=None)

    def is_decided(self, num_to_come: int) -> bool:
        """Whether no number of votes to come can overtake the leader."""
        counts = sorted((len(trusts) for trusts in self._trusts.values()), reverse=True)
        first, second = (*counts, 0, 0)[:2]
        return first > second + num_to_come

    def rank(self, candidate: Hashable) -> tuple[int, float]:
        """Number of votes, and the mean trust of those who gave them."""
        trusts = self._trusts[candidate]
        return len(trusts), sum(trusts) / len(trusts)


def pass_at(
    names: Sequence[str],
    inputs_NT: IntArray,
    labels_NT: IntArray,
    answers_NT: IntArray,
    q_halt_N: NDArray[np.floating],
    side: int,
) -> dict[int, float]:
    """For each k of TRIALS the share of tasks all of whose test inputs are answered by one of the first k grids.

    Answers to the variants `names` of test inputs are turned back, and those to one test input vote for a grid. Without
    any answer the score is 0.
    """
    ballots: dict[tuple[str, bytes], Ballot] = {}  # by task and test input
    labels: dict[tuple[str, bytes], bytes] = {}
    for name, *rows, q_halt in zip(names, inputs_NT, labels_NT, answers_NT, q_halt_N.tolist(), strict=True):
        task, variant = variant_of(name)
        question, label, answer = (grid_key(variant.invert(grid_at(tokens_T, side))) for tokens_T in rows)
        ballots.setdefault((task, question), Ballot()).cast(answer, q_halt)
        labels[task, question] = label
    ranked = {test_input: ballot.ranked() for test_input, ballot in ballots.items()}
    num_tasks = len({task for task, _ in labels})
    shares: dict[int, float] = {}
    for k in TRIALS:
        missed = {key[0] for key, label in labels.items() if label not in ranked[key][:k]}
        shares[k] = (num_tasks - len(missed)) / num_tasks if num_tasks else 0.0
    return shares


def grid_key(grid: Grid) -> bytes:
    """Bytes that are the same for equal grids only."""
    return bytes(grid.shape) + np.ascontiguousarray(grid, dtype=np.int8).tobytes()
