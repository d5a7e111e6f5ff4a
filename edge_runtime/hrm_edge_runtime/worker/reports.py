"""What the engine process tells of a lane it has opened."""

from __future__ import annotations

from dataclasses import dataclass, field

from hrm_edge_runtime.worker.memory_budget import in_mib


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """A lane that is ready: its slots and why so many, what it holds in memory, how long its steps take.

    `step_s` is the time of a segment over so many slots, as far as it was measured.
    """

    num_slots: int
    queue_limit: int
    slots_rule: str = "given"
    memory_bytes: int = 0
    step_s: dict[int, float] = field(default_factory=dict[int, float])

    def __str__(self) -> str:
        curve = ", ".join(f"{size}: {1000 * seconds:.1f} ms" for size, seconds in self.step_s.items())
        return f"{self.num_slots} slots ({self.slots_rule}; steps {curve}), {in_mib(self.memory_bytes)}"
