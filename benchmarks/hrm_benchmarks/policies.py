"""Five ways to serve the same puzzles, all through the same lane and the same engine.

They differ only in how many slots they use, whether a free slot is refilled while others still think, and whether rows
that have halted are still computed. Rounds are interleaved and ratios taken inside one: a machine that slows down slows
every policy.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from hrm_benchmarks.report import Row, print_table, tell
from hrm_benchmarks.scripted import MAX_SEGMENTS, Scripted, VirtualClock, draw_segments, made_up
from hrm_edge_runtime.batching import task
from hrm_edge_runtime.batching.lane import Checker, Lane, run_all
from hrm_edge_runtime.contract import halting
from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_from_csv, questions_made

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
    name: str
    single: bool = False
    batches: bool = True  # waits for a whole batch before the next
    burns: bool = False  # computes halted rows until their batch ends
    early_exit: bool = True


POLICIES: tuple[Policy, ...] = (
    Policy(name="refill", batches=False),  # what the server does
    Policy(name="fixed", early_exit=False),  # always every segment
    Policy(name="slowest", burns=True),
    Policy(name="compaction"),  # halted rows leave the step
    Policy(name="one-at-a-time", single=True),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    engine: Engine
    puzzle: Checker
    puzzle_vector_E: Float32
    questions: Questions
    rule: halting.HaltingPolicy
    clock: Callable[[], float]
    title: str


def scripted_bench(one: Scripted, *, virtual: bool) -> Bench:
    rng, puzzle, clock = np.random.default_rng(one.seed), registry.get(one.puzzle), VirtualClock()
    asked = made_up(puzzle, one.puzzles, rng)
    segments_N = draw_segments(one.segments, rng, one.puzzles)
    return Bench(
        engine=one.engine(asked, segments_N, sleep=clock.sleep if virtual else time.sleep),
        puzzle=puzzle,
        puzzle_vector_E=np.zeros(1, np.float32),
        questions=asked,
        rule=halting.HaltingPolicy(kind="verified", max_segments=MAX_SEGMENTS),
        clock=clock if virtual else time.perf_counter,
        title=f"{one.title}, mean {segments_N.mean():.2f} segments, {asked.title}",
    )


def bundle_bench(
    bundle: Bundle,
    asked: Questions,
    precision: str,
    kind: halting.PolicyKind | None,
    num_slots: int,
    num_threads: int,
    *,
    cpu_clock: bool,
) -> Bench:
    """The real engine of a bundle, under its own halting rule or one of another kind."""
    rule = bundle.manifest.halting_policy()
    rule = replace(rule, kind=kind or rule.kind)
    return Bench(
        engine=engine_from_bundle(bundle, precision=precision, num_slots=num_slots, num_threads=num_threads),
        puzzle=bundle.puzzle,
        puzzle_vector_E=np.asarray(bundle.puzzle_table[0]),
        questions=asked,
        rule=rule,
        clock=time.process_time if cpu_clock else time.perf_counter,
        title=f"{bundle.manifest.name} {precision}, {asked.title}, rule {rule.kind} > {rule.threshold:g} up to "
        f"{rule.max_segments} segments, {num_slots} slots, {num_threads} threads, "
        f"{'CPU' if cpu_clock else 'wall'} seconds",
    )


def questions_for(bundle: Bundle, csv: Path | None, difficulty: str | None, num_puzzles: int, seed: int) -> Questions:
    """From the CSV where there is one, else fresh ones, by default of the easiest kind."""
    if csv is not None:
        return questions_from_csv(csv, bundle.puzzle).sample(num_puzzles, seed)
    easiest = next(iter(bundle.puzzle.difficulties), "")  # puzzles without difficulties are refused
    return questions_made(bundle.puzzle, num_puzzles, difficulty=difficulty or easiest, seed=seed)


def measure(bench: Bench, *, rounds: int) -> dict[str, Row]:
    """Run every policy in every round; for each the medians of its figures, and its last run's segments."""
    seen: dict[str, list[Row]] = {policy.name: [] for policy in POLICIES}
    histograms: dict[str, Row] = {}
    for number in range(1, rounds + 1):
        for policy in POLICIES:
            tell(f"round {number} of {rounds}: {policy.name}")
            results, figures = serve(policy, bench)
            refill = figures if policy.name == "refill" else seen["refill"][-1]
            ratio = refill["puzzles_per_s"] / figures["puzzles_per_s"]
            seen[policy.name].append({**figures, "refill_ratio": ratio})
            counts = np.bincount([result.segments for result in results])
            histograms[policy.name] = {"segments_histogram": counts.tolist()}
    return {
        name: {**{key: median(row[key] for row in rows) for key in rows[0]}, **histograms[name]}
        for name, rows in seen.items()
    }


def serve(policy: Policy, bench: Bench) -> tuple[list[task.Attempt], Row]:
    """Serve all puzzles, present from the start, in the same order under every policy; the figures say how it went."""
    rule = bench.rule if policy.early_exit else replace(bench.rule, kind="fixed")
    attempts = [
        task.Attempt(
            attempt_id=asked.index,
            tokens_T=asked.tokens_T,
            puzzle_vector_E=bench.puzzle_vector_E,
            policy=rule,
            arrival_s=0.0,
        )
        for asked in bench.questions
    ]
    width = 1 if policy.single else bench.engine.num_slots
    meter = _Meter(bench.engine, width=width, burns=policy.burns, num_puzzles=len(attempts))
    lane = Lane(meter, bench.puzzle, queue_limit=len(attempts), clock=bench.clock)
    size = width if policy.batches else len(attempts)
    results: list[task.Attempt] = []
    began = bench.clock()
    for start in range(0, len(attempts), size):
        results += run_all(lane, attempts[start : start + size])
    return results, _figures(results, bench.clock() - began, lane, meter, bench.questions)


def _figures(results: Sequence[task.Attempt], wall_s: float, lane: Lane, meter: "_Meter", asked: Questions) -> Row:
    seen, occupancy = lane.snapshot(), meter.backlog_rows_used / max(1, meter.backlog_rows_offered)
    exact = [
        result.answer_T is not None and np.array_equal(result.answer_T, asked[result.attempt_id].labels_T)
        for result in results
    ]
    return {
        "puzzles_per_s": len(results) / wall_s,
        "occupancy": occupancy,
        "occupancy_whole_run": seen.slot_segments / (seen.steps * seen.num_slots),
        "share_of_bound": occupancy * seen.step_seconds_total / wall_s,
        "host_ms_per_step": 1e3 * seen.host_seconds_total / seen.steps,
        "step_ms": 1e3 * seen.step_seconds_total / seen.steps,
        "mean_segments": float(np.mean([result.segments for result in results])),
        "exact": float(np.mean(exact)),
        "verified": float(np.mean([result.verified is True for result in results])),
        "steps": seen.steps,
    }


def print_figures(title: str, by_policy: Mapping[str, Row]) -> None:
    rows = [
        {"policy": name, **row, **({"refill_ratio": None} if name == "refill" else {"share_of_bound": None})}
        for name, row in by_policy.items()
    ]
    print_table(title, COLUMNS, rows, caption=LEGEND, left=["policy"])


class _Meter(Engine):
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
