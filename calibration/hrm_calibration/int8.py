"""INT8 calibration from end to end; read `_measured` first.

The puzzles are cut in three: on some the ranges are recorded, on others the method and the weight-only matrices are
chosen, and the rest, which took part in neither, say what was lost.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from hrm_calibration import int8_report
from hrm_calibration.choice import Int8Trials, best_of, solves_of
from hrm_calibration.int8_report import Int8Report, Judged, SiteRange, paired
from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.ranges import METHODS, scale_of
from hrm_calibration.rollouts import Recording, ServedGraph, record
from hrm_host.progress import Stages
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

    def save_report(self, directory: Path) -> None:
        """`calibration.json` and the pictures."""
        int8_report.draw(self.report, directory)
        int8_report.write(directory / int8_report.REPORT_NAME, self.report)


def calibrate(
    served: ServedGraph,
    questions: Questions,
    *,
    settings: Int8Settings,
    stages: Stages | None = None,
    cache: Path | None = None,
) -> Calibrated:
    """The INT8 forms of a served graph, chosen and judged on `questions` under its halting rule.

    `cache` keeps a finished calibration for the next time; one of another graph, other puzzles or other settings is
    refused, as are too few puzzles and puzzles of tasks that the table does not hold.
    """
    if len(questions) < MIN_PUZZLES:
        raise ValueError(f"{len(questions)} puzzles are too few to calibrate, choose and judge by; give thousands.")
    questions.require_ids(len(served.puzzle_table))
    key = int8_report.key_of(
        served.graph, served.puzzle_table, questions, {**asdict(settings), **asdict(served.policy)}
    )
    report = None if cache is None else int8_report.read(cache, key)
    if report is None:
        trials = Int8Trials(served=served, weight_bits=settings.weight_bits, stages=stages or Stages())
        report = _measured(trials, questions, settings, key)
        if cache is not None:
            int8_report.write(cache, report)
    signed = quantise(served.graph, report.scales, weight_only=report.weight_only, weight_bits=settings.weight_bits)
    return Calibrated(signed=signed, unsigned=unsigned(signed), report=report)


def parts_of(questions: Questions, settings: Int8Settings) -> tuple[Questions, Questions, Questions]:
    """Puzzles to record, to choose by and to judge by, at random; none is in two of them."""
    first = min(settings.num_calibration, len(questions) // 4)
    second = first + min(settings.num_choice, len(questions) // 2)
    order_N = np.random.default_rng(settings.seed).permutation(len(questions))
    return questions.at(order_N[:first]), questions.at(order_N[first:second]), questions.at(order_N[second:])


def _measured(trials: Int8Trials, questions: Questions, settings: Int8Settings, key: str) -> Int8Report:
    """Record, try every method, keep the best, leave weight-only what the budget asks for, and judge."""
    graph = trials.served.graph
    to_record, to_choose, to_judge = parts_of(questions, settings)
    recording = record(
        trials.served, to_record, seed=settings.seed, progress=partial(trials.stages.show, "recording ranges")
    )
    sites = _sites(graph, recording, settings.methods)
    scales_of = {method: {site.name: site.scales[method] for site in sites} for method in settings.methods}
    to_try = to_choose.at(np.arange(min(settings.num_tried, len(to_choose))))
    float32 = trials.outcomes(to_choose, "float32")
    methods = trials.score_methods(scales_of, to_try, recording.states, float32.at(slice(len(to_try))))
    chosen = best_of(methods).method
    ranking = trials.sensitivity(scales_of[chosen], recording.states)
    worst_first = [layer.weight for layer in ranking]
    steps = trials.budget_steps(scales_of[chosen], worst_first, to_choose, float32, settings.budget)
    weight_only = worst_first[: steps[-1].num_weight_only]
    final = trials.quantised(scales_of[chosen], weight_only)
    segments_N = recording.outcomes.segments_N
    return Int8Report(
        key=key,
        weight_bits=settings.weight_bits,
        num_calibration=len(to_record),
        num_tried=len(to_try),
        num_choice=len(to_choose),
        reach=[int((segments_N > segment).sum()) for segment in range(int(segments_N.max()))],
        sites=sites,
        float32=solves_of(float32),
        methods=methods,
        chosen=chosen,
        sensitivity=ranking,
        budget=settings.budget,
        budget_steps=steps,
        weight_only=weight_only,
        judged=_judged(trials, final, to_judge),
        size_bytes={"fp32": graph.ByteSize(), "int8": final.ByteSize()},
    )


def _sites(graph: onnx.ModelProto, recording: Recording, methods: Iterable[str]) -> list[SiteRange]:
    return [
        SiteRange(
            name=site.name,
            weight=site.weight,
            largest=recording.histograms[site.name].largest,
            scales={method: scale_of(recording.histograms[site.name], method) for method in methods},
        )
        for site in call_sites(graph)
    ]


def _judged(trials: Int8Trials, final: onnx.ModelProto, questions: Questions) -> Judged:
    float32 = trials.outcomes(questions, "judging float32")
    int8 = trials.outcomes(questions, "judging int8", final)
    return Judged(
        float32=solves_of(float32),
        int8=solves_of(int8),
        exact=paired(float32.exact_N, int8.exact_N),
        proven=paired(float32.proven_N, int8.proven_N),
    )
