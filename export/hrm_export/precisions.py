"""From the float32 step graph to its other precisions, each checked against what TensorRT reads.

float32 → INT8 in Q/DQ form (calibration) → float16 in between. Ranges and scales come from puzzles that take no part
in what is measured afterwards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_calibration.int8 import Calibrated, Int8Settings, calibrate
from hrm_calibration.int8_report import Int8Report
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_export.graph_rules import check_graph
from hrm_export.half import half_graph
from hrm_export.islands import islands, record_ranges
from hrm_export.onnx_graph import stored_sizes
from hrm_export.options import Options
from hrm_host.atomic import write_text
from hrm_host.progress import Stages
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle

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
