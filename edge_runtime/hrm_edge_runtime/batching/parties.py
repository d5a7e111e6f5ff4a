"""A question under way: its variants, the attempts that live and the results of those that have ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hrm_edge_runtime.batching.result import Result
from hrm_edge_runtime.batching.symmetries import TaskVariant
from hrm_edge_runtime.batching.task import SegmentEvent, Task


@dataclass(kw_only=True, eq=False)
class Party:
    """`living` are its attempts by job."""

    task: Task
    variants: list[TaskVariant]
    living: dict[int, int] = field(default_factory=dict[int, int])
    ended: list[Result] = field(default_factory=list[Result])

    def event(self, attempt: int, turned: Result) -> Iterator[SegmentEvent]:
        """What a watcher sees of an attempt that has run a segment; nothing where nobody watches."""
        if self.task.streamed and turned.answer_T is not None:
            yield SegmentEvent(
                task_id=self.task.task_id,
                attempt=attempt,
                segment=turned.segments,
                answer_T=turned.answer_T,
                margin=turned.margin,
                verified=turned.verified,
            )


class Pace:
    """When a segment that begins now will have ended, by the recent ones; other lanes have their turns in between."""

    _MEMORY = 1 / 8

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._interval_s = 0.0

    def began(self, now: float) -> None:
        if self._began_s is not None:
            self._interval_s += (now - self._began_s - self._interval_s) * (self._MEMORY if self._interval_s else 1.0)
        self._began_s = now

    def rested(self) -> None:
        """Nothing is left to do, so the time to the next beginning says nothing."""
        self._began_s = None

    def next_end_s(self, now: float, step_s: float) -> float:
        return now + max(self._interval_s, step_s)
