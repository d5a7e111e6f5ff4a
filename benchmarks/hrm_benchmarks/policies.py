"""Five ways to serve the same puzzles, all through the same lane and the same engine.

They differ in three things only: how many slots they use, whether a free slot is refilled while others still think, and
whether rows that have halted are still computed. So any difference in the figures is the policy's own.

    refill            B slots, refilled before the very next step                   (what the server does)
    fixed             B slots, a new batch when the old one is done, always every segment
    slowest           B slots, a new batch when the slowest has halted; halted rows are computed until then
    compaction        B slots, a new batch when the slowest has halted; halted rows are dropped from the step
    one-at-a-time     1 slot, early exit

Rounds are interleaved (every policy once, then again), so that a machine that slows down slows all of them; ratios are
taken inside a round. Shapes: N puzzles, T tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.report import Row, print_table
from hrm_benchmarks.scripted import MAX_SEGMENTS, Scripted, VirtualClock, draw_segments, made_up
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker, Lane, run_all
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.held_out import Questions, questions_from_csv, questions_made
from hrm_puzzles.data.sources import MIXED

COLUMNS = [
    ("policy", "{policy}"),
    ("puzzles/s", "{puzzles_per_s:.2f}"),
    ("refill x", "{refill_ratio:.2f}"),
    ("occupancy", "{occupancy:.3f}"),
    ("whole", "{occupancy_whole_run:.3f}"),
    ("of bound", "{share_of_bound:.3f}"),
    ("host ms", "{host_ms_per_step:.3f}"),
    ("step ms", "{step_ms:.2f}"),
    ("segments", "{mean_segments:.2f}"),
    ("exact", "{exact:.3f}"),
    ("proven", "{verified:.3f}"),
]
LEGEND = """\
refill x:   how many times as many puzzles per second refilling gives, in the same round
occupancy:  slot-segments that held a live puzzle, of those offered while puzzles waited; whole: in the whole run
of bound:   occupancy times the engine's share of the time; 1 is all that refilling can give
host ms:    time outside the engine for each step
exact:      puzzles with every cell right, under that policy's own halting; proven: those the check proves"""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`batches` waits for a whole batch before the next; `burns` computes halted rows until their batch ends."""

    name: str
    single: bool = False
    batches: bool = True
    burns: bool = False
    early_exit: bool = True


POLICIES: tuple[Policy, ...] = (
    Policy(name="refill", batches=False),
    Policy(name="fixed", early_exit=False),
    Policy(name="slowest", burns=True),
    Policy(name="compaction"),
    Policy(name="one-at-a-time", single=True),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Everything the policies share."""

    engine: Engine
    puzzle: Checker
    attempts: Sequence[Attempt]
    labels_NT: NDArray[np.int32]
    clock: Callable[[], float]
    title: str


def scripted_bench(one: Scripted, *, virtual: bool) -> Bench:
    """A scripted engine whose steps cost time but no work."""
    rng, puzzle, clock = np.random.default_rng(one.seed), registry.get(one.puzzle), VirtualClock()
    asked = made_up(puzzle, one.num_puzzles, rng)
    segments_N = draw_segments(one.segments, rng, one.num_puzzles)
    policy = HaltingPolicy(kind="verified", max_segments=MAX_SEGMENTS)
    return Bench(
        engine=one.engine(asked, segments_N, sleep=clock.sleep if virtual else time.sleep),
        puzzle=puzzle,
        attempts=attempts_of(asked, policy, np.zeros(1, np.float32)),
        labels_NT=asked.labels_NT,
        clock=clock if virtual else time.perf_counter,
        title=f"{one.title}, mean {segments_N.mean():.2f} segments, {asked.title}",
    )


def bundle_bench(
    bundle: Bundle,
    asked: Questions,
    *,
    precision: str,
    policy: HaltingPolicy,
    num_slots: int,
    num_threads: int,
    cpu_clock: bool,
) -> Bench:
    """The real engine of a bundle."""
    return Bench(
        engine=engine_from_bundle(bundle, precision=precision, num_slots=num_slots, num_threads=num_threads),
        puzzle=bundle.puzzle,
        attempts=attempts_of(asked, policy, np.asarray(bundle.puzzle_table[0])),
        labels_NT=asked.labels_NT,
        clock=time.process_time if cpu_clock else time.perf_counter,
        title=f"{bundle.manifest.name} {precision}, {asked.title}, rule {policy.kind} > {policy.threshold:g} up to "
        f"{policy.max_segments} segments, {num_slots} slots, {num_threads} threads, "
        f"{'CPU' if cpu_clock else 'wall'} seconds",
    )


def questions_for(bundle: Bundle, csv: Path | None, difficulty: str | None, num_puzzles: int, seed: int) -> Questions:
    """From the CSV where there is one, else fresh ones, by default of the easiest kind."""
    if csv is not None:
        return questions_from_csv(csv, bundle.puzzle).sample(num_puzzles, seed)
    easiest = next(iter(bundle.puzzle.difficulties), MIXED)
    return questions_made(bundle.puzzle, num_puzzles, difficulty=difficulty or easiest, seed=seed)


def attempts_of(questions: Questions, policy: HaltingPolicy, puzzle_vector_E: Float32) -> list[Attempt]:
    """All puzzles as attempts for one lane, numbered from 0, arriving at once."""
    return [
        Attempt(
            attempt_id=asked.index,
            tokens_T=asked.tokens_T,
            puzzle_vector_E=puzzle_vector_E,
            policy=policy,
            arrival_s=0.0,
        )
        for asked in questions
    ]


def measure(bench: Bench, *, rounds: int, tell: Callable[[str], object]) -> dict[str, dict[str, Any]]:
    """Run every policy in every round; for each the medians of its figures, and its last run's segments."""
    seen: dict[str, list[Row]] = {policy.name: [] for policy in POLICIES}
    runs: dict[str, PolicyRun] = {}
    for number in range(1, rounds + 1):
        for policy in POLICIES:
            tell(f"round {number} of {rounds}: {policy.name}")
            runs[policy.name] = serve(policy, bench)
            seen[policy.name].append(figures(runs[policy.name], runs["refill"], bench.labels_NT))
    return {
        name: {
            **{key: median(row[key] for row in rows) for key in rows[0]},
            "segments_histogram": np.bincount([result.segments for result in runs[name].results]).tolist(),
        }
        for name, rows in seen.items()
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyRun:
    """What one policy did: `lane` counts its steps, "backlog" means while puzzles were still waiting."""

    results: Sequence[Attempt]
    wall_s: float
    lane: LaneSnapshot
    backlog_rows_used: int
    backlog_rows_offered: int

    @property
    def rows_offered(self) -> int:
        return self.lane.steps * self.lane.num_slots


def serve(policy: Policy, bench: Bench) -> PolicyRun:
    """Serve all puzzles, present from the start, under a policy; every policy sees them in the same order."""
    attempts = [replace(one) for one in bench.attempts]
    if not policy.early_exit:
        attempts = [replace(one, policy=replace(one.policy, kind="fixed")) for one in attempts]
    width = 1 if policy.single else bench.engine.num_slots
    meter = _Meter(bench.engine, width=width, burns=policy.burns, num_puzzles=len(attempts))
    lane = Lane(meter, bench.puzzle, queue_limit=len(attempts), clock=bench.clock)
    size = width if policy.batches else len(attempts)
    results: list[Attempt] = []
    began = bench.clock()
    for start in range(0, len(attempts), size):
        results += run_all(lane, attempts[start : start + size])
    return PolicyRun(
        results=results,
        wall_s=bench.clock() - began,
        lane=lane.snapshot(),
        backlog_rows_used=meter.backlog_rows_used,
        backlog_rows_offered=meter.backlog_rows_offered,
    )


def figures(run: PolicyRun, refill: PolicyRun, labels_NT: NDArray[np.int32]) -> Row:
    """The figures of one run beside the refill run of the same round."""
    occupancy = run.backlog_rows_used / max(1, run.backlog_rows_offered)
    puzzles_per_s = len(run.results) / run.wall_s
    return {
        "puzzles_per_s": puzzles_per_s,
        "refill_ratio": len(refill.results) / refill.wall_s / puzzles_per_s,
        "occupancy": occupancy,
        "occupancy_whole_run": run.lane.slot_segments / run.rows_offered,
        "share_of_bound": occupancy * run.lane.step_seconds_total / run.wall_s,
        "host_ms_per_step": 1e3 * run.lane.host_seconds_total / run.lane.steps,
        "step_ms": 1e3 * run.lane.step_seconds_total / run.lane.steps,
        "mean_segments": float(np.mean([result.segments for result in run.results])),
        "exact": exact_share(run, labels_NT),
        "verified": float(np.mean([result.verified is True for result in run.results])),
        "steps": run.lane.steps,
    }


def exact_share(run: PolicyRun, labels_NT: NDArray[np.int32]) -> float:
    """Share of puzzles answered with exactly their label."""
    right = [
        result.answer_T is not None and np.array_equal(result.answer_T, labels_NT[result.attempt_id])
        for result in run.results
    ]
    return float(np.mean(right))


def print_figures(title: str, by_policy: Mapping[str, Row]) -> None:
    rows = [
        {"policy": name, **row, **({"refill_ratio": None} if name == "refill" else {"share_of_bound": None})}
        for name, row in by_policy.items()
    ]
    print_table(title, COLUMNS, rows, caption=LEGEND, left=["policy"])


class _Meter:
    """An engine that counts rows while puzzles wait, and computes halted rows where the policy burns them."""

    def __init__(self, engine: Engine, *, width: int, burns: bool, num_puzzles: int) -> None:
        self.num_slots = width
        self.seq_len = engine.seq_len
        self.backlog_rows_used = self.backlog_rows_offered = 0
        self._engine = engine
        self._burns = burns
        self._num_waiting = num_puzzles
        self._batch_width = 0

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._num_waiting -= 1
        self._batch_width = max(self._batch_width, slot + 1) if slot else 1  # a batch begins with slot 0
        self._engine.load(slot, tokens_T, puzzle_vector_E)

    def move(self, source: int, target: int) -> None:
        self._engine.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        if self._num_waiting:
            self.backlog_rows_used += num_active
            self.backlog_rows_offered += self.num_slots
        if not self._burns:
            return self._engine.step(num_active)
        output = self._engine.step(self._batch_width)
        return StepOutput(
            answer_BT=output.answer_BT[:num_active],
            halt_margin_B=output.halt_margin_B[:num_active],
            q_halt_B=output.q_halt_B[:num_active],
        )

    def close(self) -> None:
        """The engine is closed by its owner."""
