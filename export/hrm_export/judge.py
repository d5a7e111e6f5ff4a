"""Compare a measured precision with PyTorch and float32; reject one that loses too much."""

from collections.abc import Mapping

import numpy as np

from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.bundle import Golden
from hrm_export.forms import Form, Measured
from hrm_host import command
from hrm_parity import walk
from hrm_parity.outcomes import MOST_DECIDING, Paired, num_deciding
from hrm_parity.report import (
    GOLDEN_FP32,
    LOGIT_TOLERANCE,
    ParityReport,
    breaks,
)

ROUNDINGS = 4.0
"""A graph may be this many times as far from float64 as PyTorch's own float32.

Another processor was up to three times as far.
"""


class ParityError(ValueError):
    """A graph differs from PyTorch, or it solves much less than float32."""

    exit_status = command.UNSOLVED


def compare(measured: Measured, served: ServedGraph, golden: Golden) -> dict[str, ParityReport]:
    """Replay the golden traces on every graph of a precision; reports by file name."""
    num_slots = len(golden.tokens_BT)
    reports: dict[str, ParityReport] = {}
    for name, graph in measured.graphs.files().items():
        with served.engine(graph, num_slots=num_slots, want_logits=True) as engine:
            reports[name] = walk.compare(
                golden,
                engine,
                puzzle_table=served.puzzle_table,
                puzzle=served.puzzle,
                policy=measured.policy,
            )
    return reports


def judge_lower(
    measured: Measured,
    fp32: Form,
    served: ServedGraph,
    golden: Golden,
    max_loss: float,
) -> Form:
    """The form of a precision below float32.

    Raises ParityError if it certainly loses more than `max_loss` points or if its logits are not
    finite.
    """
    precision = measured.graphs.precision
    lost = measured.losses_against(fp32.measured)
    parity = compare(measured, served, golden)
    require_small_loss(precision, lost["exact"], max_loss)
    require_finite(precision, parity)
    return Form(
        measured=measured,
        parity=parity,
        origin=measured.graphs.origin,
        lost=lost,
        undecided=doubt_about(lost["exact"], max_loss),
    )


def tolerance_for(rounding: float) -> float:
    """The logit gap allowed after segment 1 if PyTorch's own float32 has the gap `rounding`.

    It is stricter than replaying elsewhere, because PyTorch ran on this processor, unless the model
    amplifies rounding.
    """
    elsewhere = GOLDEN_FP32.every_segment["worst"]["logit_gap"]
    return min(elsewhere, max(LOGIT_TOLERANCE, ROUNDINGS * rounding))


def require_parity(reports: Mapping[str, ParityReport], rounding: float) -> None:
    """Raise ParityError if a float32 graph differs from PyTorch on the golden traces."""
    worst = dict(GOLDEN_FP32.every_segment["worst"])
    worst["logit_gap"] = tolerance_for(rounding)
    gates = GOLDEN_FP32.model_copy(update={"every_segment": {"worst": worst}})
    for report in reports.values():
        broken = breaks(report, gates)
        if broken:
            raise ParityError(
                f"the float32 graph differs from PyTorch ({broken[0]}), so no bundle was written; "
                "report this with the checkpoint's config.json"
            )


def require_small_loss(precision: str, exact: Paired, max_loss: float) -> None:
    """Raise ParityError if even the low end of the interval exceeds `max_loss` points."""
    points = 100 * exact.loss
    low = 100 * exact.low
    high = 100 * exact.high
    if low <= max_loss:
        return
    raise ParityError(
        f"{precision} loses {points:.2f} points of exact solves against fp32 over "
        f"{exact.num_puzzles} puzzles (95 %: {low:.2f} to {high:.2f}) but --max-loss allows "
        f"{max_loss:g}, so no bundle was written; allow more, omit {precision}, or give INT8 "
        "a smaller --int8-budget"
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


def require_finite(precision: str, reports: Mapping[str, ParityReport]) -> None:
    for name, report in reports.items():
        if not np.isfinite(report.max_logit_gap):
            raise ParityError(
                f"{name} returns logits that are not finite, so no bundle was written; omit "
                f"{precision} and report this with the checkpoint's config.json"
            )
