"""INT8 calibration from end to end; read `_measured` first.

The puzzles are cut in three: on some the ranges are recorded, on others the method and the weight-only matrices are
chosen, and the rest, which took part in neither, say what was lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_calibration import int8_report
from hrm_calibration import int8_report as kept
from hrm_calibration.choice import Bench, Progress, best_of, sensitivity, solves_of
from hrm_calibration.int8_report import Int8Report, Judged, LayerDrift, SiteRange, paired
from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.ranges import METHODS, scale_of
from hrm_calibration.rollouts import Recording, record
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_puzzles.data.held_out import Questions

MIN_PUZZLES = 4


@dataclass(frozen=True, kw_only=True)
class Int8Settings:
    """What decides the outcome. `budget` is the share of exact solves that may be lost.

    Of few puzzles at most a quarter goes to calibration and a half to choice; on the first `num_tried` of the latter
    the methods are tried, on all of them the budget is kept. `weight_bits` 8 is for TensorRT: on x86 processors without
    VNNI its CPU form needs a slower kernel.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    weight_bits: int = 7
    num_calibration: int = 256
    num_tried: int = 1024
    num_choice: int = 4096
    budget: float = 0.005
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibrated:
    """One INT8 function in two forms, with how it came about: `signed` for TensorRT, `unsigned` for CPUs."""

    signed: onnx.ModelProto
    unsigned: onnx.ModelProto
    report: Int8Report

    def save_pictures(self, directory: Path) -> list[Path]:
        return int8_report.save(self.report, directory)


def calibrate(
    graph: onnx.ModelProto,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    policy: HaltingPolicy,
    questions: Questions,
    *,
    settings: Int8Settings,
    progress: Progress,
    cache: Path | None = None,
    num_threads: int = 1,
) -> Calibrated:
    """The INT8 forms of a float32 step graph, chosen and judged on `questions` under `policy`.

    `cache` keeps a finished calibration for the next time; one of another graph, other puzzles or other settings is
    refused, as are too few puzzles and puzzles of tasks that the table does not hold.
    """
    _require_fit(questions, puzzle_table)
    key = kept.key_of(graph, puzzle_table, questions, {**asdict(settings), **asdict(policy)})
    report = None if cache is None else kept.read(cache, key)
    if report is None:
        bench = Bench(
            graph=graph,
            puzzle=puzzle,
            puzzle_table=puzzle_table,
            policy=policy,
            weight_bits=settings.weight_bits,
            num_threads=num_threads,
            progress=progress,
        )
        report = _measured(bench, questions, settings, key)
        if cache is not None:
            kept.write(cache, report)
    signed = quantise(graph, report.scales, weight_only=report.weight_only, weight_bits=settings.weight_bits)
    return Calibrated(signed=signed, unsigned=unsigned(signed), report=report)


def parts_of(questions: Questions, settings: Int8Settings) -> tuple[Questions, Questions, Questions]:
    """Puzzles to record, to choose by and to judge by, at random; none is in two of them."""
    first = min(settings.num_calibration, len(questions) // 4)
    second = first + min(settings.num_choice, len(questions) // 2)
    order_N = np.random.default_rng(settings.seed).permutation(len(questions))
    return questions.at(order_N[:first]), questions.at(order_N[first:second]), questions.at(order_N[second:])


def _measured(bench: Bench, questions: Questions, settings: Int8Settings, key: str) -> Int8Report:
    """Record, try every method, keep the best, leave weight-only what the budget asks for, and judge."""
    to_record, to_choose, to_judge = parts_of(questions, settings)
    recording = _recorded(bench, to_record, settings)
    sites = _sites(bench.graph, recording, settings.methods)
    scales_of = {method: {site.name: site.scales[method] for site in sites} for method in settings.methods}
    to_try = to_choose.at(np.arange(min(settings.num_tried, len(to_choose))))
    float32 = bench.outcome(bench.graph, to_choose, "float32")
    methods = bench.score_methods(scales_of, to_try, recording.states, float32.first(len(to_try)))
    best, scales = best_of(methods), scales_of[best_of(methods).method]
    ranking = _ranking(bench, scales, recording)
    worst_first = [layer.weight for layer in ranking]
    steps = bench.budget_steps(scales, worst_first, to_choose, float32, settings.budget)
    weight_only = worst_first[: steps[-1].num_weight_only]
    final = bench.quantised(scales, weight_only)
    return Int8Report(
        key=key,
        weight_bits=settings.weight_bits,
        num_calibration=len(to_record),
        num_tried=len(to_try),
        num_choice=len(to_choose),
        reach=_reach(recording),
        sites=sites,
        float32=solves_of(float32),
        methods=methods,
        chosen=best.method,
        sensitivity=ranking,
        budget=settings.budget,
        budget_steps=steps,
        weight_only=weight_only,
        judged=_judged(bench, final, to_judge),
        size_bytes={"fp32": bench.graph.ByteSize(), "int8": final.ByteSize()},
    )


def _recorded(bench: Bench, questions: Questions, settings: Int8Settings) -> Recording:
    return record(
        bench.graph,
        bench.puzzle,
        bench.puzzle_table,
        questions,
        bench.policy,
        num_threads=bench.num_threads,
        seed=settings.seed,
        progress=lambda done: bench.progress("recording ranges", done, len(questions)),
    )


def _sites(graph: onnx.ModelProto, recording: Recording, methods: tuple[str, ...]) -> list[SiteRange]:
    return [
        SiteRange(
            name=site.name,
            weight=site.weight,
            largest=recording.histograms[site.name].largest,
            scales={method: scale_of(recording.histograms[site.name], method) for method in methods},
        )
        for site in call_sites(graph)
    ]


def _ranking(bench: Bench, scales: dict[str, float], recording: Recording) -> list[LayerDrift]:
    ranked = sensitivity(
        bench.graph,
        scales,
        recording.states,
        weight_bits=bench.weight_bits,
        num_threads=bench.num_threads,
        progress=lambda done, total: bench.progress("ranking layers", done, total),
    )
    return [LayerDrift(weight=weight, drift=moved) for weight, moved in ranked]


def _judged(bench: Bench, final: onnx.ModelProto, questions: Questions) -> Judged:
    float32 = bench.outcome(bench.graph, questions, "judging float32")
    int8 = bench.outcome(final, questions, "judging int8")
    return Judged(
        float32=solves_of(float32),
        int8=solves_of(int8),
        exact=paired(float32.exact_N, int8.exact_N),
        proven=paired(float32.proven_N, int8.proven_N),
    )


def _reach(recording: Recording) -> list[int]:
    segments_N = recording.outcome.segments_N
    return [int((segments_N > segment).sum()) for segment in range(int(segments_N.max()))]


def _require_fit(questions: Questions, puzzle_table: NDArray[np.float32]) -> None:
    if len(questions) < MIN_PUZZLES:
        raise ValueError(f"{len(questions)} puzzles are too few to calibrate, choose and judge by; give thousands.")
    questions.require_ids(len(puzzle_table))
