"""What crosses the pipe between the HTTP process and its engine process: plain frozen data.

Both ends are our own processes on one machine, so pickling is safe and `time.monotonic` means the
same to both. The HTTP process numbers tasks, with one count for all lanes.
"""

from typing import NamedTuple

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport, MakeLane


class Solve(NamedTuple):
    """Solve a task in a lane; times are of `time.monotonic`, `request` is the HTTP request's id."""

    lane: LaneKey
    task: Task
    request: str = ""


class Cancel(NamedTuple):
    """Drop a task: its client has left."""

    lane: LaneKey
    task_id: int


class Load(NamedTuple):
    """Open one more lane; answered by LaneChanged.

    If `beside`, it opens in a thread while the other lanes run.
    """

    lane: LaneKey
    make_lane: MakeLane
    beside: bool


class Retire(NamedTuple):
    """Close a lane that has no tasks left; answered by LaneChanged."""

    lane: LaneKey


class Stop(NamedTuple):
    """End immediately and drop unfinished tasks. The HTTP process drains before it sends this."""


class Ready(NamedTuple):
    """Every lane is loaded and has run its warm-up steps."""

    load_s: float
    reports: dict[LaneKey, LaneReport]


class LaneChanged(NamedTuple):
    """The outcome of a Load or Retire: open with a `report`, refused, or closed.

    `is_over_budget` is True if the refusal is for a lack of memory.
    """

    lane: LaneKey
    report: LaneReport | None = None
    refusal: str | None = None
    is_over_budget: bool = False


class Stepped(NamedTuple):
    """The outcome of a step: the tasks that ended in any way, and events of streamed tasks."""

    results: list[Result]
    events: list[SegmentEvent]


class Rejected(NamedTuple):
    """A lane did not take a task; `message` is the reason in one sentence."""

    task_id: int
    message: str


class Failed(NamedTuple):
    """The engine ends; `message` says why in a sentence.

    It is a refusal if the engine cannot open its lanes.
    """

    message: str
    is_refusal: bool = False


class Snapshot(NamedTuple):
    """The lanes at `taken_s`, a time of `time.monotonic`."""

    lanes: dict[LaneKey, LaneSnapshot]
    taken_s: float


ToEngine = Solve | Cancel | Load | Retire | Stop
FromEngine = Ready | LaneChanged | Stepped | Rejected | Failed | Snapshot
