"""Five ways to serve the same puzzles, all through the same lane and the same engine.

They differ in the number of slots, in whether a free slot is refilled while others still run, and
in whether halted rows are still computed. Rounds are interleaved and ratios are taken inside a
round, so that a machine that slows down slows every policy.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from hrm_benchmarks.command import ServingOptions
from hrm_benchmarks.report import Row, medians_of, tell
from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.engines.factory import choose, engine_for
from hrm_host.reading import counted
from hrm_parity import walk
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

COLUMNS = {
    "policy": "{policy}",
    "puzzles/s": "{puzzles_per_s:.2f}",
    "refill x": "{refill_ratio:.2f}",
    "occupancy": "{occupancy:.3f}",
    "of bound": "{share_of_bound:.3f}",
    "host ms": "{host_ms_per_step:.3f}",
    "step ms": "{step_ms:.2f}",
    "segments": "{mean_segments:.2f}",
    "exact": "{exact:.3f}",
    "proven": "{verified:.3f}",
}
LEGEND = """\
refill x: how many times as many puzzles per second refill serves, in the same round
occupancy: share of the offered slot-segments that held a live puzzle while puzzles waited
of bound: occupancy times the engine's share of the time; 1 is the most that refill can reach
host ms: time outside the engine per step
exact: puzzles with every cell right, under the policy's own halting; proven: by the check"""


class Policy(NamedTuple):
    name: str
    single: bool = False  # one slot
    batches: bool = True  # waits for the whole batch before the next one starts
    burns: bool = False  # keeps computing halted rows until their batch ends
    early_exit: bool = True


REFILL = Policy(name="refill", batches=False)  # the server's policy
POLICIES = (
    REFILL,
    Policy(name="fixed", early_exit=False),  # runs every segment
    Policy(name="slowest", burns=True),
    Policy(name="compaction"),  # halted rows leave the step
    Policy(name="one-at-a-time", single=True),
)


class Bench(NamedTuple):
    """What every policy serves: an engine, the puzzles and the halting rule."""

    engine: Engine
    puzzle: Puzzle
    puzzle_table: Float32
    questions: Questions
    rule: HaltingPolicy
    clock: Callable[[], float]
    title: str


def bundle_bench(bundle: Bundle, questions: Questions, options: ServingOptions) -> Bench:
    """Return the engine of a bundle, under its halting rule."""
    slots = options.slots
    threads = options.threads
    choice = choose(bundle, options.engine, num_slots=slots)
    rule = bundle.manifest.halting_policy(choice.precision)
    halting = f"rule {rule.kind} > {rule.threshold:g} up to {counted(rule.max_segments, 'segment')}"
    clock = time.perf_counter
    seconds = "wall"
    if options.cpu_clock:
        clock = time.process_time
        seconds = "CPU"
    sizes = f"{counted(slots, 'slot')}, {counted(threads, 'thread')}, {seconds} seconds"
    return Bench(
        engine=engine_for(bundle, engine=str(choice), num_slots=slots, num_threads=threads),
        puzzle=bundle.puzzle,
        puzzle_table=bundle.puzzle_table,
        questions=questions,
        rule=rule,
        clock=clock,
        title=f"{bundle.manifest.name} on {choice}, {questions.title}, {halting}, {sizes}",
    )


def measure(bench: Bench, *, rounds: int) -> list[Row]:
    """Run every policy in every round; return a row of medians for each policy."""
    rows_of: defaultdict[str, list[Row]] = defaultdict(list)
    refill_per_s = 0.0
    for number in range(1, rounds + 1):
        for policy in POLICIES:
            tell(f"round {number} of {rounds}: {policy.name}")
            _, figures = serve(policy, bench)
            per_s = figures["puzzles_per_s"]
            if policy is REFILL:  # runs first in every round
                refill_per_s = per_s
            rows_of[policy.name].append({**figures, "refill_ratio": refill_per_s / per_s})
    found: list[Row] = []
    for name, rows in rows_of.items():
        medians = medians_of(rows)
        if name != REFILL.name:
            medians["share_of_bound"] = None  # the bound is that of refill
        found.append({"policy": name, **medians})
    return found


def serve(policy: Policy, bench: Bench) -> tuple[list[Attempt], Row]:
    """Serve all puzzles, which wait from the start, in the same order under every policy.

    Returns the ended attempts and the figures of the run.
    """
    attempts = attempts_of(policy, bench)
    width = 1 if policy.single else bench.engine.num_slots
    meter = Meter(bench.engine, width=width, burns=policy.burns, num_puzzles=len(attempts))
    lane = Lane(meter, bench.puzzle, queue_limit=len(attempts), clock=bench.clock)
    batch = width if policy.batches else len(attempts)
    results: list[Attempt] = []
    began_s = bench.clock()
    for start in range(0, len(attempts), batch):
        results += run_all(lane, attempts[start : start + batch])
    seconds = bench.clock() - began_s
    return results, _figures(results, seconds, lane, meter, bench.questions)


def attempts_of(policy: Policy, bench: Bench) -> list[Attempt]:
    rule = bench.rule
    if not policy.early_exit:
        rule = replace(rule, kind="fixed")
    return list(walk.attempts_of(bench.questions, bench.puzzle_table, rule))


def _figures(
    results: Sequence[Attempt], seconds: float, lane: Lane, meter: "Meter", questions: Questions
) -> Row:
    seen = lane.snapshot()
    return {
        "puzzles_per_s": len(results) / seconds,
        "occupancy": meter.occupancy,
        "share_of_bound": meter.occupancy * seen.step_seconds_total / seconds,
        "host_ms_per_step": 1e3 * seen.host_seconds_total / seen.steps,
        "step_ms": 1e3 * seen.step_seconds_total / seen.steps,
        "mean_segments": fmean(result.segments for result in results),
        "exact": fmean(_is_exact(result, questions) for result in results),
        "verified": fmean(result.verified is True for result in results),
        "steps": seen.steps,
    }


def _is_exact(result: Attempt, questions: Questions) -> bool:
    if result.answer_T is None:
        return False
    label_T = questions[result.attempt_id].labels_T
    return np.array_equal(result.answer_T, label_T)


class Meter(Engine):
    """An engine that counts rows while puzzles wait, and computes halted rows if `burns`."""

    def __init__(self, engine: Engine, *, width: int, burns: bool, num_puzzles: int) -> None:
        self.num_slots = width
        self.seq_len = engine.seq_len
        self._engine = engine
        self._burns = burns
        self._num_waiting = num_puzzles
        self._batch_width = 0
        self._rows_used = 0
        self._rows_offered = 0

    @property
    def occupancy(self) -> float:
        """Share of the offered rows that were used while puzzles waited."""
        return self._rows_used / max(1, self._rows_offered)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._num_waiting -= 1
        if slot == 0:  # a batch begins with slot 0
            self._batch_width = 0
        self._batch_width = max(self._batch_width, slot + 1)
        self._engine.load(slot, tokens_T, puzzle_vector_E)

    def move(self, source: int, target: int) -> None:
        self._engine.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        if self._num_waiting:
            self._rows_used += num_active
            self._rows_offered += self.num_slots
        if not self._burns:
            return self._engine.step(num_active)
        output = self._engine.step(self._batch_width)
        return StepOutput(
            answer_BT=output.answer_BT[:num_active],
            halt_margin_B=output.halt_margin_B[:num_active],
            q_halt_B=output.q_halt_B[:num_active],
        )

    def close(self) -> None:
        """Do nothing; the owner closes the engine."""
