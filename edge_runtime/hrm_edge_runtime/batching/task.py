"""The records of a request in the engine: a Task is tried as Attempts and ends in one Result.

Shapes: T tokens, E puzzle-vector size. Times are seconds of the lane's clock. A higher `priority`
is more urgent.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hrm_edge_runtime.batching.stats import Outcome, Status
from hrm_edge_runtime.batching.variants import Hypotheses
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Float32, Int32

How = Literal["plain", "symmetries", "hypotheses"]


class Task(NamedTuple):
    """One puzzle to solve and how hard to try; it can be pickled.

    - `best_effort`: end shortly before the deadline with the best answer so far.
    - `streamed`: report a `SegmentEvent` after each segment of each attempt.
    - `guesses`: every attempt may try hypotheses.
    """

    task_id: int
    tokens_T: Int32
    policy: HaltingPolicy
    arrival_s: float
    deadline_s: float | None = None
    priority: int = 0
    puzzle_id: int = 0
    num_attempts: int = 1
    guesses: bool = False
    best_effort: bool = False
    streamed: bool = False


@dataclass(kw_only=True, slots=True, eq=False)
class Attempt:
    """One try at a puzzle, submitted once: waiting, in a slot, or ended.

    `number` is the variant of its task; 0 is the original puzzle. The scheduler and the lane write
    the fields after the gap. `slot` is the slot that it holds or held last. `answer_T` is None if
    no segment ran or if its output was invalid.
    """

    attempt_id: int
    tokens_T: Int32
    puzzle_vector_E: Float32
    policy: HaltingPolicy
    arrival_s: float
    priority: int = 0
    deadline_s: float | None = None
    task_id: int = 0
    number: int = 0
    hypotheses: Hypotheses | None = None

    slot: int | None = field(default=None, init=False)
    admitted_s: float = field(default=0.0, init=False)
    segments: int = field(default=0, init=False)
    verified: bool | None = field(default=None, init=False)
    margin: float = field(default=0.0, init=False)
    q_halt: float = field(default=0.0, init=False)
    answer_T: Int32 | None = field(default=None, init=False)
    halted_by: Outcome | None = field(default=None, init=False)
    queue_s: float = field(default=0.0, init=False)
    compute_s: float = field(default=0.0, init=False)


class SegmentEvent(NamedTuple):
    """An attempt's answer after one segment, transformed back to the original puzzle."""

    task_id: int
    attempt: int
    segment: int
    answer_T: Int32
    margin: float
    verified: bool | None


class Result(NamedTuple):
    """How a task ended: the attempt that answers it, and what all attempts cost together.

    `num_attempts` attempts ran at least one segment. `votes` attempts gave this answer, which is
    `vote_share` of those that gave any. Both are None if answers can be proven or if there is no
    answer.
    """

    task_id: int
    answer_T: Int32 | None
    status: Status
    verified: bool | None
    segments: int
    halted_by: Outcome
    margin: float
    queue_s: float
    compute_s: float
    num_attempts: int
    total_segments: int
    votes: int | None = None
    vote_share: float | None = None
    how: How = "plain"
