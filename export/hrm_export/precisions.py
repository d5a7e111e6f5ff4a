"""Make precisions of a graph and judge them. Read `judge_precisions`.

Every precision is made, measured on the held-out puzzles, and judged before the next one is made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hrm_calibration.half import record_ranges
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.contract.manifest import AttemptKind
from hrm_export.attempts import proven_by
from hrm_export.contents import Contents
from hrm_export.forms import Form, Graphs, Measured, make_fp16, make_int8, measure
from hrm_export.inputs import PER_HELD_OUT
from hrm_export.judge import compare, judge_lower, require_parity, tolerance_for
from hrm_export.limit import LimitedStages, OutOfTimeError
from hrm_export.options import Options
from hrm_export.task_results import TaskScores, task_scores
from hrm_export.torch_engine import Traces, golden_traces

CANDIDATES = 16
"""Puzzles tried for each golden trace; not every one survives rounding."""
NUM_RANGE_PUZZLES = 64
"""Puzzles that record the ranges for float16."""
FP32_SHARE = 0.25
"""Share of the time limit after which no more held-out puzzle is measured in float32."""


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
    stages: LimitedStages,
) -> JudgedForms:
    """Make, measure and judge float32 and every requested precision.

    What is not finished within the time limit is missing; float32 and its golden traces are always
    there. Raises ParityError if the float32 graph differs from PyTorch on the golden traces or if a
    lower precision certainly loses more than `max_loss`.
    """
    measured = measured_fp32(contents, options, stages)
    traces = trace(contents, measured.policy.threshold, options.golden, stages)
    golden = traces.golden
    fp32 = judged_fp32(measured, traces, contents, stages)
    forms = [fp32]
    for lower in measured_lower(contents, fp32, options, stages):
        form = judge_lower(lower, fp32, contents.served, golden, options.max_loss)
        forms.append(form)
    served = replace(contents.served, policy=fp32.policy)
    try:
        scores = task_scores(served, contents.tasks, contents.identifiers, stages)
    except OutOfTimeError as error:
        stages.say(f"the tasks are not scored: {error}")
        scores = None
    return JudgedForms(forms=forms, golden=golden, task_scores=scores)


def measured_fp32(contents: Contents, options: Options, stages: LimitedStages) -> Measured:
    """The measured float32 form, on as many held-out puzzles as there is time for."""
    graphs = Graphs(precision="fp32", portable=contents.served.graph)
    held_out = contents.held_out
    end_s = stages.end_of(FP32_SHARE)
    measured = measure(graphs, contents.served, held_out, options.threshold, stages.shown, end_s)
    num_puzzles = measured.score.num_puzzles
    if num_puzzles < len(held_out):
        stages.say(
            f"{num_puzzles} of {len(held_out)} held-out puzzles are measured in "
            f"{FP32_SHARE:.0%} of {stages.minutes:g} minutes"
        )
    return measured


def trace(
    contents: Contents,
    threshold: float,
    num_golden: int,
    stages: LimitedStages,
) -> Traces:
    """Golden traces of held-out puzzles."""
    num_candidates = min(CANDIDATES * num_golden, len(contents.held_out))
    candidates = contents.held_out.at(np.arange(num_candidates))
    show = partial(stages.shown.show, "golden traces")
    return golden_traces(contents.model, candidates, threshold, num_golden, progress=show)


def judged_fp32(
    measured: Measured,
    traces: Traces,
    contents: Contents,
    stages: LimitedStages,
) -> Form:
    parity = compare(measured, contents.served, traces.golden)
    require_parity(parity, traces.rounding)
    attempts: dict[AttemptKind, int] = {}
    try:
        attempts = proven_by(measured, contents.served, contents.held_out, stages)
    except OutOfTimeError as error:
        stages.say(f"further attempts are not tried: {error}")
    origin = {
        "tolerance": tolerance_for(traces.rounding),
        "num_candidates": traces.num_tried,
        "attempts": attempts,
    }
    return Form(measured=measured, parity=parity, origin=origin)


def measured_lower(
    contents: Contents,
    fp32: Form,
    options: Options,
    stages: LimitedStages,
) -> Iterator[Measured]:
    """The requested precisions below float32, each made after the one before is judged.

    Says which ones are missing if the time limit ends.
    """
    missing = list(options.lower_precisions)
    if not missing:
        return
    num_puzzles = fp32.measured.score.num_puzzles
    held_out = contents.held_out.at(np.arange(num_puzzles))
    num_sample = min(PER_HELD_OUT * num_puzzles, len(contents.calibration))
    sample = contents.calibration.at(np.arange(num_sample))
    served = replace(contents.served, policy=fp32.policy)
    show = partial(stages.show, "recording ranges for float16")
    try:
        range_puzzles = contents.calibration.sample(NUM_RANGE_PUZZLES)
        ranges = record_ranges(served, range_puzzles, progress=show)
        for precision in options.lower_precisions:
            if precision == "fp16":
                graphs = make_fp16(served, ranges)
            else:
                graphs = make_int8(served, ranges, sample, options, stages)
            yield measure(graphs, contents.served, held_out, options.threshold, stages)
            missing.remove(precision)
    except OutOfTimeError as error:
        stages.say(f"the bundle lacks {' and '.join(missing)}: {error}")
