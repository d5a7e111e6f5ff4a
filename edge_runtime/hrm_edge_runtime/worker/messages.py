"""What crosses the pipe between the HTTP process and its engine process: plain frozen data.

Both ends are our own processes on one machine, so pickling is safe and `time.monotonic` means the
same to both. The HTTP process numbers tasks, with one count for all lanes.
"""

from dataclasses import dataclass

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport, MakeLane


@dataclass(frozen=True, kw_only=True, eq=False)
class Solve:
    """Solve a task in a lane; times are of `time.monotonic`, `request` is the HTTP request's id."""

    lane: LaneKey
    task: Task
    request: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Drop a task: its client has left."""

    lane: LaneKey
    task_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """Open one more lane; answered by LaneChanged.

    If `beside`, it opens in a thread while the other lanes run.
    """

    lane: LaneKey
    make_lane: MakeLane
    beside: bool


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Close a lane that has no tasks left; answered by LaneChanged."""

    lane: LaneKey


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End immediately and drop unfinished tasks. The HTTP process drains before it sends this."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Every lane is loaded and has run its warm-up steps."""

    load_s: float
    reports: dict[LaneKey, LaneReport]


@dataclass(frozen=True, kw_only=True)
class LaneChanged:
    """The outcome of a Load or Retire: open with a `report`, refused, or closed.

    `is_over_budget` is True if the refusal is for a lack of memory.
    """

    lane: LaneKey
    report: LaneReport | None = None
    refusal: str | None = None
    is_over_budget: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Stepped:
    """The outcome of a step: the tasks that ended in any way, and events of streamed tasks."""

    results: list[Result]
    events: list[SegmentEvent]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A lane did not take a task; `message` is the reason in one sentence."""

    task_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The engine ends; `message` says why in a sentence.

    It is a refusal if the engine cannot open its lanes.
    """

    message: str
    is_refusal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The lanes at `taken_s`, a time of `time.monotonic`."""

    lanes: dict[LaneKey, LaneSnapshot]
    taken_s: float


ToEngine = Solve | Cancel | Load | Retire | Stop
FromEngine = Ready | LaneChanged | Stepped | Rejected | Failed | Snapshot
