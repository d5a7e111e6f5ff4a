"""The fields of every request and answer, as pydantic models."""

import secrets
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from hrm_edge_runtime.batching.stats import LaneSnapshot, Outcome, Status
from hrm_edge_runtime.batching.task import How
from hrm_edge_runtime.contract.halting import PolicyKind
from hrm_edge_runtime.contract.manifest import AttemptKind, TaskResults
from hrm_edge_runtime.worker.client import EngineState
from hrm_puzzles.puzzle import Route


class SolveRequest(BaseModel, extra="forbid", strict=True, frozen=True):
    """One puzzle to solve. Only `puzzle` is needed."""

    puzzle: Any = Field(
        description="The puzzle in any notation of its kind: a line of text, several lines, rows, "
        "or a flat list. "
        "The solution comes back in the same notation."
    )
    kind: str | None = Field(
        default=None, max_length=100, description="The puzzle's name, as /models gives it."
    )
    model: str | None = Field(
        default=None, max_length=200, description="The model's name, as /models gives it."
    )
    policy: PolicyKind | None = Field(
        default=None,
        description="When to stop: at a proof, when the model decides to, "
        "or after exactly max_segments.",
    )
    max_segments: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="At most this many segments; bounded by the model's own limit.",
    )
    attempts: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Try this many copies of the puzzle under its symmetries; 1 by default. "
        "The first proven answer wins; if no proof exists, they vote.",
    )
    how: Literal["plain", "hypotheses"] | None = Field(
        default=None,
        description="hypotheses: attempts may treat undecided cells as given for a while; "
        "plain: they may not. By default they may if that helps this model.",
    )
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Answer within this many milliseconds, or with 504.",
    )
    best_so_far: bool = Field(
        default=False,
        description="At the deadline, send the answer that the model has by then, not 504.",
    )
    priority: int = Field(
        default=0,
        ge=-3,
        le=3,
        description="Greater goes first; one step is worth ten seconds of waiting.",
    )


BatchOrder = Literal["as-finished", "kept"]


class BatchQuery(BaseModel):
    order: BatchOrder = Field(
        default="as-finished",
        description="Answers as they finish, or in the order of the lines.",
    )


class SolveAnswer(BaseModel):
    """The model's answer, right or wrong: `status` says what is known of it."""

    solution: Any = Field(description="The model's last answer, in the notation of the puzzle.")
    status: Status = Field(
        description="proven: it keeps every rule and every given of its puzzle; another answer may "
        "do so too. halted: no proof exists; the model stopped by itself, see margin and "
        "vote_share. unfinished: neither."
    )
    how: How = Field(
        description="What the attempt that gave this answer did: it ran the puzzle as sent, or a "
        "symmetric copy, or tried hypotheses, which are checked against the puzzle as sent."
    )
    verified: bool | None = Field(
        description="Whether it keeps every rule and every given; null if no proof exists."
    )
    segments: int = Field(description="How many segments the attempt ran that gave this answer.")
    halted_by: Outcome
    margin: float = Field(
        description="The halting margin of the last segment; positive: the model would stop."
    )
    queue_ms: float
    compute_ms: float
    model: str
    attempts: int = Field(
        description="How many attempts ran; a puzzle may have fewer than requested."
    )
    total_segments: int = Field(
        description="The segments of all attempts together: what the answer cost."
    )
    votes: int | None = Field(description="How many attempts gave this answer, if no proof exists.")
    vote_share: float | None = Field(description="Their share of the attempts that gave an answer.")
    route: Route | None = Field(
        default=None,
        description="The route in the answer, and the cost of the best route. In a maze it has one "
        "leg, whose cost is its moves. In a city it lists the customers in the order of their "
        "visits, and returns to the depot.",
    )


class SegmentView(BaseModel):
    """One attempt after one segment in /solve/stream; in the frame and notation of the question."""

    segment: int
    attempt: int = Field(description="Which attempt, from 0.")
    solution: Any
    changed: list[int] = Field(
        description="Cells, row by row from 0, that differ from this attempt's last event."
    )
    margin: float
    verified: bool | None


class ErrorDetail(BaseModel):
    """The same six keys for every refusal.

    `reason` and `rule` are stable words; `cell` is (row, column) from 1.
    """

    reason: str
    field: str | None
    rule: str | None
    cell: tuple[int, int] | None
    message: str
    remedy: str


class ErrorAnswer(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorDetail


class BatchLine(BaseModel):
    """One line of the answer of /solve/batch: an answer or an error."""

    line: int = Field(description="The number of the request's line, from 1.")
    answer: SolveAnswer | None = None
    error: ErrorDetail | None = None


ServerState = Literal["ready", "partial", "no-model", "loading", "draining", "failed"]


class ModelCounts(BaseModel):
    """How many models have an engine, wait for one, or failed to get one."""

    ready: int
    loading: int
    failed: int


class UnreadyAnswer(ErrorAnswer):
    """The server takes no new work; without a key, only the state says why.

    `progress` is the model, precision and elapsed_s of a TensorRT engine that is being built.
    """

    state: ServerState
    models: ModelCounts | None = None
    progress: dict[str, str | float] | None


class HaltingView(BaseModel):
    """The halting rule for requests that name none."""

    policy: PolicyKind
    threshold: float


class LegendView(BaseModel):
    """The characters of a puzzle's boards, for pages that draw them."""

    values: dict[str, int] = Field(description="Every character that is read, with its value.")
    symbols: dict[int, str] = Field(description="The character that is written for each value.")
    open_value: int
    described: str


ModelState = Literal["loading", "ready", "failed"]


class ModelView(BaseModel):
    """One served model."""

    name: str
    state: ModelState = Field(
        default="ready", description="Whether its engine is ready; older servers do not name it."
    )
    problem: str | None = Field(default=None, description="Why it failed; null unless it did.")
    kind: str = Field(description="The puzzle it solves.")
    proof_exists: bool = Field(
        description="Whether an answer to this puzzle can be checked against its rules."
    )
    seq_len: int
    vocab_size: int
    hidden_size: int
    max_segments: int
    halting: HaltingView
    precision: str
    precision_reason: str | None = Field(
        default=None, description="Why TensorRT runs this precision; null for other engines."
    )
    slots: int
    slots_rule: str | None = Field(
        description="Why so many slots: given, compute-bound or knee; null until it is measured."
    )
    step_ms: dict[int, float] = Field(
        description="Milliseconds of a segment by number of slots, as far as measured."
    )
    memory_bytes: int | None = Field(description="The engine's memory that opening its lane took.")
    max_attempts: int = Field(description="The largest `attempts` of a request.")
    attempt_kind: AttemptKind = Field(
        description="What attempts after the first do; the export chooses what helps."
    )
    rows: int | None = Field(description="Rows of its (largest) board, null if it has none.")
    cols: int | None
    identifiers: int = Field(
        description="Rows of its puzzle table: its tasks, their variants, and one blank."
    )
    tasks: int = Field(
        description="How many tasks it knows by name, each with its variants; 0 if it has one."
    )
    held_out_tasks: TaskResults | None = Field(
        default=None,
        description="Tasks whose held-out questions it answers right; null if that is unknown.",
    )
    legend: LegendView | None = Field(
        default=None, description="The characters of its boards; null if the puzzle has none."
    )
    sample: Any = Field(description="A question as a person would send it.")
    provenance: dict[str, str | int | float]
    card: str | None = Field(default=None, description="Path of its card, a page in Markdown.")


class ModelsAnswer(BaseModel):
    models: list[ModelView]


class KindView(BaseModel):
    """A kind of board that a generator makes, whether or not a model here solves it."""

    kind: str
    rows: int
    cols: int
    difficulties: list[str]
    legend: LegendView | None = None


class KindsAnswer(BaseModel):
    kinds: list[KindView]


class FreshRequest(BaseModel):
    """Which puzzle to make. `held_out`: from the quarter that no training set holds."""

    kind: str = Field(max_length=100, description="As /kinds names it.")
    difficulty: str = Field(default="easy", max_length=40)
    seed: int = Field(default_factory=partial(secrets.randbits, 32), ge=0, lt=2**53)
    held_out: bool = False


class FreshPuzzle(FreshRequest):
    """A fresh puzzle and its proven answer, as `hrm-data import` reads both.

    The same seed gives the same puzzle.
    """

    puzzle: Any
    solution: Any
    rating: int = Field(
        description="Its own measure: moves of a maze, cost of a tour, backtracks of a Sudoku."
    )


class LabelRequest(BaseModel, extra="forbid", strict=True, frozen=True):
    """A puzzle and a proposed answer, each in any notation of its kind."""

    kind: str = Field(max_length=100, description="As /kinds names it.")
    puzzle: Any
    solution: Any


class LabelAnswer(BaseModel):
    """The label is valid for training; `verified` is null if no proof exists."""

    verified: bool | None


class ChangeAnswer(BaseModel):
    """The model is served from now on."""

    model: ModelView
    replaced: bool = Field(description="It replaced a model of its name, which finishes its work.")


class RemovedAnswer(BaseModel):
    """The model is no longer served; it finishes the work it admitted."""

    removed: str


class EngineView(BaseModel):
    """The engine process. Repeated `losses` with a `last_error` mean that it crashes in a loop."""

    state: EngineState
    pid: int | None
    losses: int
    losses_in_a_row: int
    last_error: str | None


class LaneView(BaseModel):
    """The slots of one model; `lane` is null until the engine reports."""

    name: str = Field(description="The model's name.")
    lane: LaneSnapshot | None
    memory_bytes: int | None = Field(description="The engine's memory that opening it took.")
    requests: int = Field(description="Requests that hold one of its places.")


class SlotsAnswer(BaseModel):
    """The engine's last snapshot, at most a tenth of a second old while it works."""

    engine: EngineView
    waiting: int = Field(description="Requests that wait for an answer.")
    snapshot_age_ms: float | None
    lanes: list[LaneView]


class LiveAnswer(BaseModel):
    """The server answers, and the engine makes progress if there is work."""

    alive: Literal[True] = True
    step_age_ms: float = Field(
        description="Time since the last step while work waits; 0 if none waits."
    )


class ReadyAnswer(BaseModel):
    """The server takes new work; it is `partial` while models join, with --ready first."""

    state: Literal["ready", "partial"]
    models: ModelCounts | None = Field(default=None, description="With a key, if there are keys.")
