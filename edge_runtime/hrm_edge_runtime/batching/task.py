"""What goes into `Attempts` and what comes out: plain frozen data, fit to cross a pipe.

Shapes: T tokens.
"""

from dataclasses import dataclass

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.result import Result
from hrm_edge_runtime.engines.engine import Int32


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One puzzle and how hard to try; `streamed` asks for a `SegmentEvent` after each segment of each attempt.

    Times are seconds of the lane's clock; a greater `priority` is more urgent. With `best_so_far` a question that will
    not be finished by its deadline ends with what its attempts have, in time for it, rather than with nothing.
    """

    task_id: int
    tokens_T: Int32
    policy: HaltingPolicy
    arrival_s: float
    deadline_s: float | None = None
    priority: int = 0
    puzzle_id: int = 0
    num_attempts: int = 1
    best_so_far: bool = False
    streamed: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentEvent:
    """What one attempt says after one segment, turned back into the variant of whoever asked."""

    task_id: int
    attempt: int
    segment: int
    answer_T: Int32
    margin: float
    verified: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Conclusion:
    """The one end of a question: the result of the attempt that answers, turned back.

    `num_attempts` ran at least one segment, and all of them together `total_segments`; `votes` is how many gave this
    answer, None where answers can be proven or there is none.
    """

    task_id: int
    result: Result
    num_attempts: int
    total_segments: int
    votes: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """What one step brought: questions concluded, and what the streamed ones look like now."""

    conclusions: tuple[Conclusion, ...] = ()
    events: tuple[SegmentEvent, ...] = ()
