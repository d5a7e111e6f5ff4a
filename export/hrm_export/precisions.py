"""From the float32 step graph to its other precisions, each checked against what TensorRT reads.

float32 → INT8 in Q/DQ form (calibration) → float16 in between. Ranges and scales come from puzzles that take no part
in what is measured afterwards.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_calibration.halting_curve import (
    PolicyScore,
    Rollout,
    Score,
    choose,
    last_segment_N,
    learned_curve,
    roll_out,
    score_policy,
)
from hrm_calibration.int8 import Calibrated, Int8Settings, calibrate
from hrm_calibration.int8_report import Int8Report, Paired, paired
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_export.contents import Options
from hrm_export.half import half_graph, islands, record_ranges
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_host.atomic import write_text
from hrm_host.progress import Stages
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import RIGHT, Puzzle

NUM_RANGE_PUZZLES = 64
REPORT_NAME = "calibration.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """One precision: the `portable` graph, its form for CPUs where there is another, and how it came about."""

    precision: str
    portable: onnx.ModelProto
    cpu: onnx.ModelProto | None = None
    origin: dict[str, Any]

    @property
    def graphs(self) -> dict[str, onnx.ModelProto]:
        """By file name; the last one is what a CPU runs."""
        portable = {f"step.{self.precision}.onnx": self.portable}
        return portable if self.cpu is None else {**portable, f"step.{self.precision}.cpu.onnx": self.cpu}


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """The float32 graph with what it takes to run it: the puzzle, its table, and puzzles to calibrate with."""

    graph: onnx.ModelProto
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    questions: Questions
    policy: HaltingPolicy


def lower_precisions(bench: Bench, options: Options, stages: Stages) -> Iterator[Form]:
    """The forms that were asked for beside float32, each made when the one before has been judged."""
    if not (options.fp16 or options.int8):
        return
    few = bench.questions.sample(NUM_RANGE_PUZZLES)
    ranges = record_ranges(
        bench.graph,
        bench.puzzle,
        bench.puzzle_table,
        few,
        bench.policy,
        progress=lambda done: stages.show("recording ranges for float16", done, len(few)),
    )
    if options.fp16:
        kept = islands(bench.graph, ranges)
        half = _checked(half_graph(bench.graph, kept), bench.graph)
        yield Form(precision="fp16", portable=half, origin={"float32_nodes": sorted(kept)})
    if options.int8:
        calibrated = _calibrated(bench, options, stages)
        kept = islands(calibrated.signed, ranges)
        portable = _checked(half_graph(calibrated.signed, kept), bench.graph)
        report = calibrated.report
        origin = {"float32_nodes": sorted(kept), "calibration": _summary(report)}
        yield Form(precision="int8", portable=portable, cpu=calibrated.unsigned, origin=origin)


def _calibrated(bench: Bench, options: Options, stages: Stages) -> Calibrated:
    calibrated = calibrate(
        bench.graph,
        bench.puzzle,
        bench.puzzle_table,
        bench.policy,
        bench.questions,
        settings=Int8Settings(budget=options.int8_budget / 100),
        progress=stages.show,
        cache=options.cache,
        num_threads=os.cpu_count() or 1,
    )
    if options.report is not None:
        calibrated.save_pictures(options.report)
        write_text(options.report / REPORT_NAME, json.dumps(calibrated.report.as_json(), indent=1) + "\n")
    return calibrated


def _summary(report: Int8Report) -> dict[str, Any]:
    return {
        "method": report.chosen,
        "weight_bits": report.weight_bits,
        "num_calibration": report.num_calibration,
        "num_choice": report.num_choice,
        "weight_only": report.weight_only,
        "key": report.key,
    }


def _checked(graph: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    check_graph(graph, stored_sizes(original))
    return graph


NUM_SLOTS = 8
HALTING_LOSS = 0.005
"""Share of exact solves that stopping early may cost against running all segments, where no threshold is given."""
MEASURED_BATCHES = (1, 8)
MEASURE_S = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One precision on the held-out puzzles; `policy` holds the threshold chosen for it."""

    rollout: Rollout
    curve: list[PolicyScore]
    policy: HaltingPolicy

    @property
    def score(self) -> Score:
        """Under the rule as served."""
        return score_policy(self.rollout, self.policy).total

    def exact_N(self, policy: HaltingPolicy) -> NDArray[np.bool_]:
        return self._at_the_end(self.rollout.exact_SN, policy)

    def proven_N(self, policy: HaltingPolicy) -> NDArray[np.bool_]:
        return self._at_the_end(self.rollout.verdict_SN == RIGHT, policy)

    def halting_curve(self) -> dict[str, Any]:
        """As the manifest holds it."""
        points = [
            {
                "threshold": point.policy.threshold,
                "exact": point.total.exact,
                "proven": point.total.proven,
                "mean_segments": point.total.mean_segments,
            }
            for point in self.curve
        ]
        return {"num_puzzles": self.score.num_puzzles, "threshold": self.policy.threshold, "points": points}

    def _at_the_end(self, values_SN: NDArray[np.bool_], policy: HaltingPolicy) -> NDArray[np.bool_]:
        last_N = last_segment_N(self.rollout, policy)
        return values_SN[last_N, np.arange(len(last_N))]


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Against float32: solves under the rule as served, and after all segments, where no threshold plays a part."""

    exact: Paired
    proven: Paired
    exact_after_all: Paired

    def as_json(self) -> dict[str, Any]:
        return {
            "exact": self.exact.model_dump(),
            "proven": self.proven.model_dump(),
            "exact_after_all_segments": self.exact_after_all.model_dump(),
        }


def measure(
    graph: Path,
    puzzle: Puzzle,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    threshold: float | None,
    progress: Callable[[int], object],
) -> Measured:
    """Every held-out puzzle through all segments; without a `threshold` the one of fewest segments is chosen.

    That loses at most the share `HALTING_LOSS` against all segments. Chosen and scored on the same puzzles.
    """
    engine = OnnxEngine(graph, num_slots=NUM_SLOTS)
    try:
        rollout = roll_out(engine, puzzle, puzzle_table, questions, policy.max_segments, progress=progress)
    finally:
        engine.close()
    curve = learned_curve(rollout)
    if threshold is None:
        threshold = choose(curve, float(rollout.exact_SN[-1].mean()), HALTING_LOSS).policy.threshold
    chosen = HaltingPolicy(kind=policy.kind, threshold=threshold, max_segments=policy.max_segments)
    return Measured(rollout=rollout, curve=curve, policy=chosen)


def losses(reference: Measured, ours: Measured) -> Losses:
    every = HaltingPolicy(kind="fixed", max_segments=reference.policy.max_segments)
    return Losses(
        exact=paired(reference.exact_N(reference.policy), ours.exact_N(ours.policy)),
        proven=paired(reference.proven_N(reference.policy), ours.proven_N(ours.policy)),
        exact_after_all=paired(reference.exact_N(every), ours.exact_N(every)),
    )


def segment_ms(graph: Path, batch: int, questions: Questions, puzzle_table: NDArray[np.float32]) -> float:
    """Median over about MEASURE_S of whole steps with every slot in use, all cores."""
    engine = OnnxEngine(graph, num_slots=batch)
    for slot in range(batch):
        row = slot % len(questions)
        engine.load(slot, questions.tokens_NT[row], puzzle_table[questions.puzzle_ids_N[row]])
    engine.step(batch)
    times_s: list[float] = []
    while len(times_s) < 5 or sum(times_s) < MEASURE_S:
        started = time.perf_counter()
        engine.step(batch)
        times_s.append(time.perf_counter() - started)
    engine.close()
    return 1000 * median(times_s)
