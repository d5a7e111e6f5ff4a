"""The precisions of a step graph, and what each solves on held-out puzzles, when it stops and how fast it runs.

INT8 graphs compute in float16 between their Q/DQ nodes. Ranges and scales come from other puzzles than those measured.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from hrm_calibration import int8_report
from hrm_calibration.halting_curve import Outcomes, PolicyScore, Rollout, Score, choose, learned_curve, roll_out
from hrm_calibration.int8 import Int8Settings, calibrate
from hrm_calibration.int8_report import Paired, paired
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Float32, median_step_ms
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_export.contents import Contents, Options
from hrm_export.half import float32_nodes, half_graph, record_ranges
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_host.progress import OnProgress, Stages
from hrm_puzzles.data.held_out import Questions

NUM_RANGE_PUZZLES = 64
NUM_SLOTS = 8
HALTING_LOSS = 0.005
"""Share of exact solves that stopping early may cost against running all segments, where no threshold is given."""
MEASURED_BATCHES = (1, 8)
MEASURE_S = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """One precision: the `portable` graph, its form for CPUs where there is another, and how it came about."""

    precision: str
    portable: onnx.ModelProto
    cpu: onnx.ModelProto | None = None
    origin: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def graphs(self) -> dict[str, onnx.ModelProto]:
        """By file name; the last one is what a CPU runs."""
        portable = {f"step.{self.precision}.onnx": self.portable}
        return portable if self.cpu is None else {**portable, f"step.{self.precision}.cpu.onnx": self.cpu}


def lower_precisions(served: ServedGraph, questions: Questions, options: Options, stages: Stages) -> Iterator[Form]:
    """The other forms in the options, each made after the one before has been judged."""
    if not (options.fp16 or options.int8):
        return
    few, graph = questions.sample(NUM_RANGE_PUZZLES), served.graph
    ranges = record_ranges(served, few, progress=partial(stages.show, "recording ranges for float16"))
    if options.fp16:
        kept = float32_nodes(graph, ranges)
        half = half_graph(graph, kept)
        check_graph(half, stored_sizes(graph))
        yield Form(precision="fp16", portable=half, origin={"float32_nodes": sorted(kept)})
    if options.int8:
        served, settings = (
            replace(served, num_threads=os.cpu_count() or 1),
            Int8Settings(budget=options.int8_budget / 100),
        )
        calibrated = calibrate(served, questions, settings=settings, stages=stages, cache=options.cache)
        report = calibrated.report
        if options.report is not None:
            int8_report.save(report, options.report)
        kept = float32_nodes(calibrated.signed, ranges)
        portable = half_graph(calibrated.signed, kept)
        check_graph(portable, stored_sizes(graph))
        fields = ("weight_bits", "num_calibration", "num_choice", "weight_only", "key")
        summary = {"method": report.chosen, **{name: getattr(report, name) for name in fields}}
        origin = {"float32_nodes": sorted(kept), "calibration": summary}
        yield Form(precision="int8", portable=portable, cpu=calibrated.unsigned, origin=origin)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One precision on the held-out puzzles; `policy` holds the threshold chosen for it, `score` is under that rule."""

    rollout: Rollout
    curve: list[PolicyScore]
    policy: HaltingPolicy

    @property
    def outcomes(self) -> Outcomes:
        return self.rollout.under(self.policy)

    @property
    def score(self) -> Score:
        return self.outcomes.score()

    def halting_curve(self) -> dict[str, Any]:
        """As the manifest holds it."""
        shown = ("exact", "proven", "mean_segments")
        points = [
            {"threshold": point.policy.threshold, **{name: getattr(point.total, name) for name in shown}}
            for point in self.curve
        ]
        return {"num_puzzles": self.score.num_puzzles, "threshold": self.policy.threshold, "points": points}


def measure(graph: Path, contents: Contents, *, threshold: float | None, progress: OnProgress) -> Measured:
    """Every held-out puzzle through all segments; the halting rule is applied afterwards, at every threshold.

    Without a `threshold` the one of fewest segments is chosen that loses at most the share `HALTING_LOSS` against all
    segments. Chosen and scored on the same puzzles.
    """
    served, policy = contents.served, contents.served.policy
    with closing(OnnxEngine(graph, num_slots=NUM_SLOTS)) as engine:
        rollout = roll_out(
            engine, served.puzzle, served.puzzle_table, contents.held_out, policy.max_segments, progress=progress
        )
    curve = learned_curve(rollout)
    if threshold is None:
        threshold = choose(curve, float(rollout.exact_SN[-1].mean()), HALTING_LOSS).policy.threshold
    return Measured(rollout=rollout, curve=curve, policy=replace(policy, threshold=threshold))


def losses(reference: Measured, ours: Measured) -> dict[str, Paired]:
    """Puzzle by puzzle, under the rule as served and after all segments, where no threshold plays a part."""
    every = HaltingPolicy(kind="fixed", max_segments=reference.policy.max_segments)
    after_all = (reference.rollout.under(every).exact_N, ours.rollout.under(every).exact_N)
    return {
        "exact": paired(reference.outcomes.exact_N, ours.outcomes.exact_N),
        "proven": paired(reference.outcomes.proven_N, ours.outcomes.proven_N),
        "exact_after_all_segments": paired(*after_all),
    }


def segment_ms(graph: Path, batch: int, questions: Questions, puzzle_table: Float32) -> float:
    """The median time of a segment with every slot in use, all cores."""
    with closing(OnnxEngine(graph, num_slots=batch)) as engine:
        for slot in range(batch):
            asked = questions[slot % len(questions)]
            engine.load(slot, asked.tokens_T, puzzle_table[asked.puzzle_id])
        return median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=5)
