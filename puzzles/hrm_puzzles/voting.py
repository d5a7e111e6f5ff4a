"""Votes for an answer where none can be proven.

Candidates are ranked as ARC is scored: by number of votes, then by the mean sigmoid of the voters' halting values.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

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
