"""How many slots a lane gets, from the time of a segment over so many slots.

The times of more and more slots tell what a device is bound by. Where a segment over B slots takes nearly B times as
long as over one, batching gives no throughput; a few slots still keep easy puzzles from waiting behind hard ones. Where
it takes less, throughput grows with B up to a knee, and past the knee only the latency grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NEARLY = 0.9
NOISE = 0.05  # a lane with slots is never slower than one puzzle at a time by more than this
FAIR_SLOTS = 4

SlotsRule = Literal["given", "compute-bound", "knee"]


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """So many slots, and the rule that says so."""

    num_slots: int
    rule: SlotsRule


def sizing_from(step_s: Mapping[int, float]) -> Sizing:
    """Choose among the measured numbers of slots, of which 1 is one.

    Compute-bound, where no number has more than 1/0.9 of the throughput of one slot: the largest up to 4 that loses no
    more than 5 % against one slot. Else the knee: the smallest with 90 % of the best throughput.
    """
    rate = {size: size / seconds for size, seconds in sorted(step_s.items())}
    best = max(rate.values())
    if NEARLY * best <= rate[1]:
        fair = [size for size in rate if size <= FAIR_SLOTS and rate[size] >= (1 - NOISE) * rate[1]]
        return Sizing(num_slots=max(fair), rule="compute-bound")
    return Sizing(num_slots=min(size for size in rate if rate[size] >= NEARLY * best), rule="knee")
