"""Exact solves over mean segments as a picture: all policies, and fixed policies by difficulty."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrm_calibration.halting_curve import ALL, HaltingReport, PolicyScore

SIZE_INCHES = (10, 4)
DOTS_PER_INCH = 120


def save_picture(path: Path, report: HaltingReport) -> None:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    policies, difficulties = figure.subplots(1, 2, sharey=True)
    draw_policies(policies, report)
    draw_difficulties(difficulties, report)
    limits = [point.policy.max_segments for point in report.fixed]
    for axes in (policies, difficulties):
        axes.set(xlabel="mean segments", xscale="log", ylim=(0, 102))
        axes.set_xticks(limits, [str(limit) for limit in limits])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    policies.set_ylabel("exact solves (%)")
    figure.suptitle(f"{report.model} ({report.precision})", fontsize=10)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def draw_policies(axes: Axes, report: HaltingReport) -> None:
    threshold = report.chosen.policy.threshold
    draw(axes, report.fixed, ALL, "o-", "fixed")
    draw(axes, report.learned, ALL, "-", "learned, any threshold")
    draw(axes, [report.plain], ALL, "k*", "learned > 0")
    draw(axes, [report.chosen], ALL, "ks", f"calibrated > {threshold:.3g}")
    if report.verified is not None:
        draw(axes, [report.verified], ALL, "kD", "until proven")
    axes.set_title("halting policies")


def draw_difficulties(axes: Axes, report: HaltingReport) -> None:
    for name in report.plain.scores:
        draw(axes, report.fixed, name, "o-", name)
    axes.set_title("fixed, by difficulty")


def draw(
    axes: Axes,
    points: Sequence[PolicyScore],
    difficulty: str,
    style: str,
    label: str,
) -> None:
    scores = [point.scores[difficulty] for point in points]
    spent = [score.mean_segments for score in scores]
    solved = [100 * score.exact for score in scores]
    axes.plot(spent, solved, style, label=label)
