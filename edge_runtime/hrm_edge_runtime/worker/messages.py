"""What crosses the pipe between the HTTP process and its engine process: plain frozen data, nothing else.

Both ends are our own two processes on one machine: pickling is safe here, and `time.monotonic` means the same to both.
A lane is known by its key, which is its model's name until that model is loaded again. Task ids are the HTTP process's
own, one count for all lanes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.worker.memory_budget import in_mib


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """A lane that is ready: its slots and the rule that chose them, its memory, and how long its steps take.

    `step_s` is the time of a segment over so many slots, as far as it was measured.
    """

    num_slots: int
    queue_limit: int
    slots_rule: str = "given"
    memory_bytes: int = 0
    step_s: dict[int, float] = field(default_factory=dict[int, float])

    def __str__(self) -> str:
        times = ", ".join(f"{size}: {1000 * seconds:.1f} ms" for size, seconds in self.step_s.items())
        return f"{self.num_slots} slots ({self.slots_rule}; steps {times}), {in_mib(self.memory_bytes)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedLane:
    """A lane that has run its warm-up, and its report. It stays in the engine process; only its maker crosses."""

    lane: Attempts
    report: LaneReport


MakeLane = Callable[[], OpenedLane]


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
    """Open one more lane beside those that run; answered by Loaded or LoadFailed.

    `beside` says whether a thread may open it while the other lanes step; some engines must be opened in the thread
    that uses them.
    """

    lane: str
    make_lane: MakeLane
    beside: bool


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Close a lane that has no tasks left; answered by Retired."""

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
class Loaded:
    """The lane takes tasks."""

    lane: str
    report: LaneReport


@dataclass(frozen=True, kw_only=True)
class LoadFailed:
    """The lane was not opened, and nothing else has changed; `lacking_bytes` where memory was the reason."""

    lane: str
    message: str
    lacking_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Retired:
    """The lane is closed and its memory given back."""

    lane: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Ended:
    """Every task that ended in one step, cancelled and expired ones too."""

    results: list[Result]


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """The streamed tasks after one step; sent before the results of that step."""

    events: list[SegmentEvent]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A lane did not take a task, with its reason in one sentence."""

    task_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The engine process cannot go on and is leaving; `message` is one sentence for the log.

    `is_refusal` where it cannot even open what it was started for, and the sentence says what to change.
    """

    message: str
    is_refusal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The lanes at `taken_s`, a moment of `time.monotonic`."""

    lanes: dict[str, LaneSnapshot]
    taken_s: float


ToEngine = Solve | Cancel | Load | Retire | Stop
FromEngine = Ready | Loaded | LoadFailed | Retired | Ended | Streamed | Rejected | Failed | Snapshot
