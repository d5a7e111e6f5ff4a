"""Make precisions of a graph and judge them. Read `judge_precisions`.

Every precision is made, measured on the held-out puzzles, and judged before the next one is made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np

from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.parity.report import LOGIT_TOLERANCE
from hrm_export.attempts import proven_by
from hrm_export.contents import Contents
from hrm_export.cost import report_board_cost
from hrm_export.finished import FinishedForms
from hrm_export.forms import Form, Graphs, Measured, make_fp16, make_int8, measure
from hrm_export.half import record_ranges
from hrm_export.judge import compare, judge_lower, require_parity
from hrm_export.options import Options
from hrm_export.plan import NUM_RANGE_PUZZLES, seconds_left
from hrm_export.task_results import TaskScores, task_scores
from hrm_export.torch_engine import golden_traces
from hrm_host.progress import Stages, duration

CANDIDATES = 16
"""Puzzles tried for each golden trace; not every one survives rounding."""
SHORT_S = 10.0
"""An export that takes less after float32 is measured says nothing about it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedForms:
    """The forms of a bundle, float32 first, and the golden traces that judged them.

    `task_scores` are those of float32; None if the model has no tasks with held-out questions, or
    if there was no time to ask them.
    """

    forms: list[Form]
    golden: Golden
    task_scores: TaskScores | None


def judge_precisions(
    contents: Contents,
    options: Options,
    finished: FinishedForms,
    stages: Stages,
) -> JudgedForms:
    """Make, measure and judge float32 and every requested precision.

    Raises ParityError if the float32 graph differs from PyTorch on the golden traces or if a lower
    precision certainly loses more than `max_loss`. Precisions that are already finished are judged
    again, but not measured again.
    """
    measured = measured_fp32(contents, options, finished, stages)
    if contents.trained is not None:
        report_board_cost(contents.served, measured, contents.trained, options, stages)
    golden, num_tried = trace(contents, measured.policy.threshold, options.golden, stages)
    fp32 = judged_fp32(measured, golden, num_tried, contents, stages)
    forms = [fp32]
    for lower in measured_lower(contents, fp32, options, finished, stages):
        form = judge_lower(lower, fp32, contents.served, golden, options.max_loss)
        forms.append(form)
    served = replace(contents.served, policy=fp32.policy)
    budget_s = 60 * options.budget_minutes
    scores = task_scores(served, contents.tasks, contents.identifiers, budget_s, stages)
    return JudgedForms(forms=forms, golden=golden, task_scores=scores)


def measured_fp32(
    contents: Contents,
    options: Options,
    finished: FinishedForms,
    stages: Stages,
) -> Measured:
    """The measured float32 form. If it is measured now, forecast the time of the rest."""
    measured = finished.load("fp32")
    if measured is not None:
        return measured
    served = contents.served
    graphs = Graphs(precision="fp32", portable=served.graph)
    began_s = perf_counter()
    measured = measure(graphs, served, contents.held_out, options.threshold, stages)
    measured_s = perf_counter() - began_s
    finished.keep(measured)
    left_s = seconds_left(measured, measured_s, served, len(contents.calibration), options)
    if left_s > SHORT_S:
        stages.say(f"fp32 measured in {duration(measured_s)}; about {duration(left_s)} left")
    return measured


def trace(
    contents: Contents,
    threshold: float,
    num_golden: int,
    stages: Stages,
) -> tuple[Golden, int]:
    """Golden traces of held-out puzzles, and how many puzzles were tried."""
    num_candidates = min(CANDIDATES * num_golden, len(contents.held_out))
    candidates = contents.held_out.at(np.arange(num_candidates))
    show = partial(stages.show, "golden traces")
    return golden_traces(contents.model, candidates, threshold, num_golden, progress=show)


def judged_fp32(
    measured: Measured,
    golden: Golden,
    num_tried: int,
    contents: Contents,
    stages: Stages,
) -> Form:
    parity = compare(measured, contents.served, golden)
    require_parity(parity)
    origin = {
        "tolerance": LOGIT_TOLERANCE,
        "num_candidates": num_tried,
        "attempts": proven_by(measured, contents.served, contents.held_out, stages),
    }
    return Form(measured=measured, parity=parity, origin=origin)


def measured_lower(
    contents: Contents,
    fp32: Form,
    options: Options,
    finished: FinishedForms,
    stages: Stages,
) -> Iterator[Measured]:
    """The requested precisions below float32, each made after the one before is judged."""
    served = replace(contents.served, policy=fp32.policy)
    calibration = contents.calibration
    reused = {precision: finished.load(precision) for precision in options.lower_precisions}
    ranges: Mapping[str, float] = {}
    if None in reused.values():
        show = partial(stages.show, "recording ranges for float16")
        ranges = record_ranges(served, calibration.sample(NUM_RANGE_PUZZLES), progress=show)
    for precision, measured in reused.items():
        if measured is not None:
            yield measured
            continue
        if precision == "fp16":
            graphs = make_fp16(served, ranges)
        else:
            graphs = make_int8(served, ranges, calibration, options, stages)
        measured = measure(graphs, contents.served, contents.held_out, options.threshold, stages)
        finished.keep(measured)
        yield measured
