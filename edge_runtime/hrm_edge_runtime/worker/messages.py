"""What crosses the pipe between the HTTP process and its engine process: plain frozen data, nothing else.

Both ends are our own two processes on one machine: pickling is safe here, and `time.monotonic` means the same to both.
A lane is known by its key, which is the name of its model until that is loaded again. Request ids are the HTTP
process's own, one count for all lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Conclusion, SegmentEvent, Task
from hrm_edge_runtime.worker.lanes import MakeLane
from hrm_edge_runtime.worker.reports import LaneReport


@dataclass(frozen=True, kw_only=True, eq=False)
class Solve:
    """Take this question in a lane; its times are moments of `time.monotonic`, `request` is its HTTP request's id."""

    lane: str
    task: Task
    request: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Nobody waits for this request any more."""

    lane: str
    request_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """Open one more lane beside those that run; answered by Loaded or LoadFailed.

    `beside` says whether a thread of its own may open it, so that the others go on stepping; some engines must be
    opened where they are used.
    """

    lane: str
    make_lane: MakeLane
    beside: bool


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Close a lane that nobody waits for any more; answered by Retired."""

    lane: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Leave at once; what is unfinished is dropped (the HTTP process drains before it says this)."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Every lane is loaded and has run its warm-up steps."""

    load_s: float
    reports: dict[str, LaneReport]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The lane asked for takes questions."""

    lane: str
    report: LaneReport


@dataclass(frozen=True, kw_only=True)
class LoadFailed:
    """The lane asked for was not opened, and nothing else has changed; `lacking_bytes` where memory was the reason."""

    lane: str
    message: str
    lacking_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Retired:
    """The lane is closed and its memory given back."""

    lane: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Ended:
    """Every question that ended in one step, cancelled and expired ones too; an `task_id` is the request's id."""

    conclusions: tuple[Conclusion, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What the streamed questions looked like after one step; sent before the step's ends."""

    events: tuple[SegmentEvent, ...]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A lane would not take a request, with its reason in one sentence."""

    request_id: int
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
    """The lanes as they stood at `taken_s`, a moment of `time.monotonic`."""

    lanes: dict[str, LaneSnapshot]
    taken_s: float


ToEngine = Solve | Cancel | Load | Retire | Stop
FromEngine = Ready | Loaded | LoadFailed | Retired | Ended | Seen | Rejected | Failed | Snapshot
