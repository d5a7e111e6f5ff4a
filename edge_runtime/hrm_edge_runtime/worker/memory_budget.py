"""How much memory the engine process holds, and how much more it may take.

On a board whose GPU shares the CPU's memory (Jetson), what the GPU holds is in no process's resident memory, so the
kernel's own count of it (NvMapMemUsed in /proc/meminfo) is added, as far as it grew since this process began. Not run
on a Jetson. The memory of a separate graphics card is not counted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hrm_host.memory import MIB, available_bytes, read_memory, resident_bytes

HEADROOM_SHARE = 0.05  # of the machine's memory, left free where no budget is given
HEADROOM_BYTES = 256 * MIB  # and never less than this


class OverBudgetError(ValueError):
    """A lane that does not fit; `lacking_bytes` is how much is missing."""

    def __init__(self, message: str, lacking_bytes: int) -> None:
        super().__init__(message)
        self.lacking_bytes = lacking_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """At most `limit_bytes` for the engine process, or without it all that the machine can spare less the headroom."""

    limit_bytes: int | None = None


class Meter:
    """This process's memory against a budget; reads 0 where the kernel tells nothing (not Linux)."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        _gpu_before_bytes()

    def held_bytes(self) -> int:
        return resident_bytes() + max(0, _gpu_bytes() - _gpu_before_bytes())

    def check(self, name: str, more_bytes: int = 0) -> None:
        """Raise OverBudgetError where the process holds, or with so much more would hold, too much."""
        room_bytes = self._room_bytes() - more_bytes
        if room_bytes < 0:
            limit = self._budget.limit_bytes
            bound = f"the budget of {in_mib(limit)}" if limit else f"what the machine can spare beside {headroom()}"
            raise OverBudgetError(
                f"the bundle {name!r} takes the engine {in_mib(-room_bytes)} past {bound}: remove a model, use fewer "
                "--slots, or start the server with a larger --memory-budget.",
                -room_bytes,
            )

    def _room_bytes(self) -> int:
        if self._budget.limit_bytes is not None:
            return self._budget.limit_bytes - self.held_bytes()
        return available_bytes() - headroom_bytes()


def headroom_bytes() -> int:
    """What stays free for everything else on the machine."""
    memory = read_memory()
    return max(HEADROOM_BYTES, int(HEADROOM_SHARE * memory.total_mb * MIB)) if memory else 0


def headroom() -> str:
    return f"a headroom of {in_mib(headroom_bytes())}"


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"


@functools.cache
def _gpu_before_bytes() -> int:
    """What the GPU held when this process first asked, which is before it loads anything."""
    return _gpu_bytes()


def _gpu_bytes() -> int:
    memory = read_memory()
    return memory.gpu_mb * MIB if memory else 0
