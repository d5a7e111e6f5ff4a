"""Whose turn it is on a device that several lanes share: deficit round robin over the seconds their steps take.

In each round every lane with work is credited the same time; one steps when its credit covers what its steps have cost
of late, and pays what the step really took. So busy lanes share the device's time equally, whatever one step of each
costs, and none runs two steps while another that can pay waits. A lane without work keeps no credit.
"""

import math
from collections.abc import Iterable, Sequence

_MEMORY = 1 / 8  # weight of the newest step in what a lane's step is thought to cost
_LEAST_S = 1e-6  # a step that costs nothing would make rounds of no length


class DeficitRoundRobin:
    """The credits and costs of named lanes; it has no clock, the seconds are passed in."""

    def __init__(self, names: Iterable[str]) -> None:
        self._ring = list(names)
        self._credit_s = dict.fromkeys(self._ring, 0.0)
        self._cost_s: dict[str, float] = {}

    def join(self, name: str) -> None:
        self._ring.append(name)
        self._credit_s[name] = 0.0

    def leave(self, name: str) -> None:
        self._ring.remove(name)
        del self._credit_s[name]
        self._cost_s.pop(name, None)

    def next(self, busy: Sequence[str]) -> str:
        """The lane to step next among those that have work, of which there is at least one."""
        for name in self._ring:
            if name not in busy:
                self._credit_s[name] = 0.0
        if len(busy) == 1:
            self._credit_s[busy[0]] = self._cost_s.get(busy[0], _LEAST_S)  # alone it owes no other lane anything
            return busy[0]
        line = [name for name in self._ring if name in busy]
        quantum_s = min(self._cost(name) for name in line)
        rounds: dict[str, int] = {}  # after how many more visits each can pay for a step
        for name in line:
            rounds[name] = max(1, math.ceil((self._cost(name) - self._credit_s[name]) / quantum_s - 1e-9))
        chosen = min(line, key=rounds.__getitem__)
        for place, name in enumerate(line):  # those behind the chosen one have not been visited in its round
            num_visits = rounds[chosen] - (place > line.index(chosen))
            self._credit_s[name] += max(0, num_visits) * quantum_s
        place = self._ring.index(chosen) + 1
        self._ring = self._ring[place:] + self._ring[:place]
        return chosen

    def charge(self, name: str, seconds: float) -> None:
        """Pay for a step."""
        seconds = max(seconds, _LEAST_S)
        known_s = self._cost_s.get(name, seconds)
        self._cost_s[name] = known_s + (seconds - known_s) * _MEMORY
        self._credit_s[name] -= seconds

    def _cost(self, name: str) -> float:
        return self._cost_s.get(name, _LEAST_S)  # a lane that never stepped goes soon, which measures its cost
