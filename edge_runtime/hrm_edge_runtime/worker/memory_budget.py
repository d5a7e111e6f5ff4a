"""How much memory the engine process holds, and how much more it may take.

On a board whose GPU shares the CPU's memory (Jetson), what the GPU holds is in no process's resident memory, so the
kernel's own count of it (NvMapMemUsed in /proc/meminfo) is added, as far as it grew since this process began. Not run
on a Jetson. The memory of a separate graphics card is not counted.
"""

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
    """At most `limit_bytes` for the engine process, or without it all that the machine can spare less a headroom."""

    limit_bytes: int | None = None

    def check(self, name: str, more_bytes: int = 0) -> None:
        """Raise OverBudgetError where the process holds, or with so much more would hold, too much."""
        held, limit = held_bytes(), self.limit_bytes
        machine = read_memory()
        headroom = max(HEADROOM_BYTES, int(HEADROOM_SHARE * machine.total_mb * MIB)) if machine else 0
        room_bytes = (available_bytes() - headroom if limit is None else limit - held) - more_bytes
        if room_bytes < 0:
            spare = f"what the machine can spare beside a headroom of {in_mib(headroom)}"
            bound = spare if limit is None else f"the budget of {in_mib(limit)}"
            raise OverBudgetError(
                f"the bundle {name!r} takes the engine {in_mib(-room_bytes)} past {bound}: remove a model, use fewer "
                "--slots, or start the server with a larger --memory-budget.",
                -room_bytes,
            )


def held_bytes() -> int:
    """What this process holds; 0 where the kernel does not say (not Linux)."""
    return resident_bytes() + max(0, _gpu_bytes() - _gpu_before_bytes())


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"


@functools.cache
def _gpu_before_bytes() -> int:
    """What the GPU held when this process first asked, which is before it loads anything."""
    return _gpu_bytes()


def _gpu_bytes() -> int:
    memory = read_memory()
    return memory.gpu_mb * MIB if memory else 0
