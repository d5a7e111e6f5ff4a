"""One benchmark: an engine, puzzles, and every policy in turn, round after round.

Rounds are interleaved (every policy once, then again), so that a machine that slows down slows all of them; ratios are
taken inside a round.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks import distributions, questions
from hrm_benchmarks.costs import COST_OF, Cost, VirtualClock
from hrm_benchmarks.policies import POLICIES, Clock, Policy, Run, serve
from hrm_benchmarks.questions import jobs_of
from hrm_benchmarks.report import Figures, figures, histogram, over_rounds
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.engines.scripted import ScriptedEngine
from hrm_puzzles import registry
from hrm_puzzles.data.held_out import Questions, questions_from_csv, questions_made
from hrm_puzzles.data.sources import MIXED


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Everything the policies share."""

    engine: Engine
    puzzle: Checker
    jobs: Sequence[Attempt]
    labels_NT: NDArray[np.int32]
    clock: Clock
    title: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    by_policy: dict[str, Figures]
    histograms: dict[str, list[int]]


def scripted_bench(
    *, segments: str, num_puzzles: int, num_slots: int, step_ms: float, cost: Cost, virtual: bool, seed: int
) -> Bench:
    """A scripted engine with 9x9 Sudoku questions, whose steps cost time but no work."""
    rng = np.random.default_rng(seed)
    puzzle = registry.get("sudoku")
    asked = questions.made_up(puzzle, num_puzzles, rng)
    segments_N = distributions.draw(distributions.shares(segments), rng, num_puzzles)
    script_of = questions.scripts(asked, segments_N)
    virtual_clock = VirtualClock()
    engine = ScriptedEngine(
        num_slots=num_slots,
        seq_len=puzzle.seq_len,
        play=lambda tokens_T: script_of[tokens_T.tobytes()],
        step_s=lambda num_rows: step_ms / 1e3 * COST_OF[cost](num_rows),
        sleep=virtual_clock.sleep if virtual else time.sleep,
    )
    policy = HaltingPolicy(kind="verified", max_segments=distributions.MAX_SEGMENTS)
    return Bench(
        engine=engine,
        puzzle=puzzle,
        jobs=jobs_of(asked, policy, np.zeros(1, np.float32)),
        labels_NT=asked.labels_NT,
        clock=virtual_clock if virtual else time.perf_counter,
        title=f"scripted engine, {segments} (mean {segments_N.mean():.2f}), {asked.title}, {num_slots} slots, "
        f"{cost} cost of {step_ms:g} ms a step",
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
    engine = engine_from_bundle(bundle, precision=precision, num_slots=num_slots, num_threads=num_threads)
    return Bench(
        engine=engine,
        puzzle=bundle.puzzle,
        jobs=jobs_of(asked, policy, np.asarray(bundle.puzzle_table[0])),
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


def measure(
    bench: Bench, *, rounds: int, policies: Sequence[Policy] = POLICIES, tell: Callable[[str], object]
) -> Outcome:
    """Run every policy in every round; `policies` begins with refill, which the others are compared with."""
    seen: dict[str, list[Figures]] = {policy.name: [] for policy in policies}
    runs: dict[str, Run] = {}
    for number in range(1, rounds + 1):
        for policy in policies:
            tell(f"round {number} of {rounds}: {policy.name}")
            runs[policy.name] = serve(policy, bench.engine, bench.puzzle, bench.jobs, clock=bench.clock)
            seen[policy.name].append(figures(runs[policy.name], runs[policies[0].name], bench.labels_NT))
    return Outcome(
        by_policy={name: over_rounds(rounds_of) for name, rounds_of in seen.items()},
        histograms={name: histogram(run) for name, run in runs.items()},
    )
