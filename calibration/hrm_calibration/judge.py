"""Make the precisions of a float32 graph and judge them. Read `judge_precisions`.

Every precision is made, measured on the held-out puzzles, and judged before the next one is made.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hrm_calibration.attempts import TaskScores, proven_by, task_scores
from hrm_calibration.forms import Form, Graphs, Measured, make_fp16, make_int8, measure
from hrm_calibration.half import record_ranges
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.contract.manifest import AttemptKind
from hrm_host import command
from hrm_host.progress import Stages
from hrm_parity import walk
from hrm_parity.outcomes import MOST_DECIDING, Paired, num_deciding
from hrm_parity.report import GOLDEN_FP32, LOGIT_TOLERANCE, ParityReport, breaks
from hrm_puzzles.data.sources import Questions

PER_HELD_OUT = 4
"""Puzzles for calibration for each held-out puzzle, at most."""
NUM_RANGE_PUZZLES = 64
"""Puzzles that record the ranges for float16."""
FP32_SHARE = 0.25
"""Share of the time limit after which no more held-out puzzle is measured in float32."""
ROUNDINGS = 4.0
"""A graph may be this many times as far from float64 as PyTorch's own float32.

Another processor was up to three times as far.
"""


class ParityError(ValueError):
    """A graph differs from PyTorch, or it solves much less than float32."""

    exit_status = command.UNSOLVED


class OutOfTimeError(ValueError):
    """The minutes of the export are over."""


@dataclass(eq=False, kw_only=True)
class LimitedStages(Stages):
    """Stages that are shown on `shown` until `minutes` after the start; then `show` raises."""

    shown: Stages
    minutes: float
    began_s: float = field(default_factory=time.monotonic)

    def show(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Show a stage; raise OutOfTimeError if the minutes are over before it is done."""
        self.shown.show(stage, done, total, note)
        is_done = total is not None and done >= total
        if not is_done and time.monotonic() >= self.end_of(1):
            self.shown.remove(stage)
            raise OutOfTimeError(f"the {self.minutes:g} minutes are over; allow more")

    def say(self, text: str) -> None:
        self.shown.say(text)

    def end_of(self, share: float) -> float:
        """The monotonic time at which this share of the minutes is over."""
        return self.began_s + share * 60 * self.minutes


class Exam(NamedTuple):
    """A float32 graph, the puzzles that judge its precisions, and what is requested of them.

    `calibration` and `held_out` share no puzzle. `identifiers` name the rows of the puzzle table,
    `tasks` holds the pairs of named tasks. `lower` are the precisions to make, fp16 or int8.
    `max_loss` are points of exact solves; INT8 is calibrated to lose half of them.
    """

    served: ServedGraph
    calibration: Questions
    held_out: Questions
    tasks: Mapping[str, Any]
    identifiers: Sequence[str]
    lower: Sequence[str]
    max_loss: float


class Traces(NamedTuple):
    """Golden traces, computed in float64 and stored in float32.

    `num_tried` candidates were tried. `rounding` is the largest logit gap of PyTorch's own float32.
    """

    golden: Golden
    num_tried: int
    rounding: float


class JudgedForms(NamedTuple):
    """The forms of a bundle, float32 first, and the golden traces that judged them.

    `task_scores` are those of float32; None if the model has no tasks with held-out questions, or
    if there was no time to ask them.
    """

    forms: list[Form]
    golden: Golden
    task_scores: TaskScores | None


def measure_fp32(exam: Exam, stages: LimitedStages) -> Measured:
    """The measured float32 form, on as many held-out puzzles as there is time for."""
    graphs = Graphs(precision="fp32", files={"step.fp32.onnx": exam.served.graph})
    end_s = stages.end_of(FP32_SHARE)
    measured = measure(graphs, exam.served, exam.held_out, stages.shown, end_s)
    num_puzzles = measured.score.num_puzzles
    if num_puzzles < len(exam.held_out):
        stages.say(
            f"{num_puzzles} of {len(exam.held_out)} held-out puzzles are measured in "
            f"{FP32_SHARE:.0%} of {stages.minutes:g} minutes"
        )
    return measured


def judge_precisions(
    exam: Exam,
    measured: Measured,
    traces: Traces,
    stages: LimitedStages,
) -> JudgedForms:
    """Judge the measured float32 form; make, measure and judge every requested precision.

    What is not finished within the time limit is missing; float32 is always there. Raises
    ParityError if the float32 graph differs from PyTorch on the golden traces or if a lower
    precision certainly loses more than `max_loss`.
    """
    fp32 = judge_fp32(exam, measured, traces, stages)
    forms = [fp32]
    for lower in measured_lower(exam, measured, stages):
        forms.append(judge_lower(exam, lower, measured, traces.golden))
    served = replace(exam.served, policy=fp32.policy)
    try:
        scores = task_scores(served, exam.tasks, exam.identifiers, stages)
    except OutOfTimeError as error:
        stages.say(f"the tasks are not scored: {error}")
        scores = None
    return JudgedForms(forms=forms, golden=traces.golden, task_scores=scores)


def judge_fp32(exam: Exam, measured: Measured, traces: Traces, stages: LimitedStages) -> Form:
    parity = compare(measured, exam.served, traces.golden)
    tolerance = tolerance_for(traces.rounding)
    require_parity(parity, tolerance)
    attempts: dict[AttemptKind, int] = {}
    try:
        served = replace(exam.served, policy=measured.policy)
        attempts = proven_by(served, measured.rollout.questions, measured.outcomes, stages)
    except OutOfTimeError as error:
        stages.say(f"further attempts are not tried: {error}")
    origin = {
        "tolerance": tolerance,
        "num_candidates": traces.num_tried,
        "attempts": attempts,
    }
    return Form(**vars(replace(measured, origin=origin)), parity=parity)


def compare(measured: Measured, served: ServedGraph, golden: Golden) -> dict[str, ParityReport]:
    """Replay the golden traces on every graph of a precision; reports by file name."""
    num_slots = len(golden.tokens_BT)
    reports: dict[str, ParityReport] = {}
    for name, graph in measured.files.items():
        with served.engine(graph, num_slots=num_slots, want_logits=True) as engine:
            reports[name] = walk.compare(
                golden,
                engine,
                puzzle_table=served.puzzle_table,
                puzzle=served.puzzle,
                policy=measured.policy,
            )
    return reports


def tolerance_for(rounding: float) -> float:
    """The logit gap allowed after segment 1 if PyTorch's own float32 has the gap `rounding`.

    It is stricter than replaying elsewhere, because PyTorch ran on this processor, unless the model
    amplifies rounding.
    """
    elsewhere = GOLDEN_FP32.every_segment["worst"]["logit_gap"]
    return min(elsewhere, max(LOGIT_TOLERANCE, ROUNDINGS * rounding))


def require_parity(reports: Mapping[str, ParityReport], tolerance: float) -> None:
    """Raise ParityError if a float32 graph differs from PyTorch on the golden traces."""
    worst = {**GOLDEN_FP32.every_segment["worst"], "logit_gap": tolerance}
    gates = GOLDEN_FP32.model_copy(update={"every_segment": {"worst": worst}})
    for report in reports.values():
        broken = breaks(report, gates)
        if broken:
            raise ParityError(
                f"the float32 graph differs from PyTorch ({broken[0]}), so no bundle was written; "
                "report this with the checkpoint's config.json"
            )


def measured_lower(exam: Exam, fp32: Measured, stages: LimitedStages) -> Iterator[Measured]:
    """The requested precisions below float32, each made after the one before is judged.

    Says which ones are missing if the time limit ends.
    """
    missing = list(exam.lower)
    if not missing:
        return
    held_out = fp32.rollout.questions
    num_sample = min(PER_HELD_OUT * len(held_out), len(exam.calibration))
    sample = exam.calibration.at(np.arange(num_sample))
    served = replace(exam.served, policy=fp32.policy)
    show = partial(stages.show, "recording ranges for float16")
    try:
        range_puzzles = exam.calibration.sample(NUM_RANGE_PUZZLES)
        ranges = record_ranges(served, range_puzzles, progress=show)
        for precision in exam.lower:
            if precision == "fp16":
                graphs = make_fp16(served, ranges)
            else:
                graphs = make_int8(served, ranges, sample, exam.max_loss / 200, stages)
            yield measure(graphs, exam.served, held_out, stages)
            missing.remove(precision)
    except OutOfTimeError as error:
        stages.say(f"the bundle lacks {' and '.join(missing)}: {error}")


def judge_lower(exam: Exam, measured: Measured, fp32: Measured, golden: Golden) -> Form:
    """The form of a precision below float32.

    Raises ParityError if it certainly loses more than `max_loss` points or if its logits are not
    finite.
    """
    precision = measured.precision
    lost = measured.losses_against(fp32)
    parity = compare(measured, exam.served, golden)
    require_small_loss(precision, lost["exact"], exam.max_loss)
    require_finite(precision, parity)
    return Form(
        **vars(measured),
        parity=parity,
        lost=lost,
        undecided=doubt_about(lost["exact"], exam.max_loss),
    )


def require_small_loss(precision: str, exact: Paired, max_loss: float) -> None:
    """Raise ParityError if even the low end of the interval exceeds `max_loss` points."""
    low = 100 * exact.low
    if low <= max_loss:
        return
    raise ParityError(
        f"{precision} loses {100 * exact.loss:.2f} points of exact solves against fp32 over "
        f"{exact.num_puzzles} puzzles (95 %: {low:.2f} to {100 * exact.high:.2f}) but --max-loss "
        f"allows {max_loss:g}, so no bundle was written; allow more, or omit {precision}"
    )


def require_finite(precision: str, reports: Mapping[str, ParityReport]) -> None:
    for name, report in reports.items():
        if not np.isfinite(report.max_logit_gap):
            raise ParityError(
                f"{name} returns logits that are not finite, so no bundle was written; omit "
                f"{precision} and report this with the checkpoint's config.json"
            )


def doubt_about(exact: Paired, max_loss: float) -> str | None:
    """State the loss and how many puzzles would decide; None if it is surely small enough."""
    low = 100 * exact.low
    high = 100 * exact.high
    if high <= max_loss:
        return None
    middle = (low + high) / 2
    half = (high - low) / 2
    count = num_deciding(exact, max_loss)
    needed = f"more than {MOST_DECIDING:,} puzzles"
    if count is not None:
        needed = f"about {count:,} puzzles"
    return f"loss {middle:.1f} ± {half:.1f} points, {needed} would decide"
