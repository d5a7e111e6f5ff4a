"""What crosses the pipe between the HTTP process and its engine process: plain frozen data, nothing else.

Both ends are our own two processes on one machine: pickling is safe here, and `time.monotonic` means the same to both.
A lane is known by its key, which is its model's name until that model is loaded again. Task ids are the HTTP process's
own, one count for all lanes.
"""

from dataclasses import dataclass

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.worker.lanes import LaneReport, MakeLane


@dataclass(frozen=True, kw_only=True, eq=False)
class Solve:
    """Solve a task in a lane; its times are moments of `time.monotonic`, `request` is its HTTP request's id."""

    lane: str
    task: Task
    request: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Drop a task: its client has gone."""

    lane: str
    task_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """Open one more lane, in a thread `beside` those that run where its engine can be; answered by LaneChanged."""

    lane: str
    make_lane: MakeLane
    beside: bool


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Close a lane that has no tasks left; answered by LaneChanged."""

    lane: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Leave at once; what is unfinished is dropped (the HTTP process drains before it sends this)."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Every lane is loaded and has run its warm-up steps."""

    load_s: float
    reports: dict[str, LaneReport]


@dataclass(frozen=True, kw_only=True)
class LaneChanged:
    """What became of a Load or Retire: open with a `report`, refused (`lacking_bytes`: for memory), or closed."""

    lane: str
    report: LaneReport | None = None
    refusal: str | None = None
    lacking_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Stepped:
    """What a step gave: every task that ended, cancelled and expired ones too, and the segments of streamed ones."""

    results: list[Result]
    events: list[SegmentEvent]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A lane did not take a task, with its reason in one sentence."""

    task_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The engine leaves, and says why in a sentence; a refusal where it cannot open what it was started for."""

    message: str
    is_refusal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The lanes at `taken_s`, a moment of `time.monotonic`."""

    lanes: dict[str, LaneSnapshot]
    taken_s: float


ToEngine = Solve | Cancel | Load | Retire | Stop
FromEngine = Ready | LaneChanged | Stepped | Rejected | Failed | Snapshot
