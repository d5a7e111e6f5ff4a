"""The plots of a parity report, as SVG to stand inside a page. Drawing needs matplotlib, which no edge machine has to.

Shapes: S segments.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.parity.gates import Gates, Measure
from hrm_edge_runtime.parity.report import ParityReport
from hrm_edge_runtime.parity.tally import How

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (5.6, 3.2)
BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9822b", "#3a8a4d", "#b3261e", "#999999"
MOST_BARS = 24
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hrm-parity",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
GAPS: dict[Measure, str] = {"logit_gap": BLUE, "halting_gap": ORANGE}
DRIFTS: dict[Measure, str] = {"logit_drift": BLUE, "carry_drift": GREEN}
DIFFERENCES: dict[Measure, str] = {"different_cells": BLUE, "different_answers": ORANGE, "different_stops": GREEN}


class PlotError(ValueError):
    """Drawing that is not possible here; the text is one sentence with the remedy."""


def plots_of(report: ParityReport, gates: Gates) -> dict[str, str]:
    """Each plot as an SVG element, by its title."""
    plots = {
        "Largest gaps": _drawn(_gaps, report, gates),
        "Drift, relative to the reference": _drawn(_drift, report, gates),
        "Answers and stops that differ": _drawn(_differences, report, gates),
        "Where puzzles halt": _drawn(_halts, report, gates),
        "Solves lost": _drawn(_losses, report, gates),
    }
    if "carry_growth" in report.columns and report.num_segments > 1:
        plots["Growth of the carry's drift"] = _drawn(_growth, report, gates)
    return plots


def _drawn(draw: Any, report: ParityReport, gates: Gates) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(f"a page needs {error.name}, which is not installed: pip install matplotlib.") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        draw(figure.subplots(), report, gates)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _gaps(axes: Axes, report: ParityReport, gates: Gates) -> None:
    for name, colour in GAPS.items():
        column = report.columns[name]
        _line(axes, column.worst_S, column.count_S, colour, name.replace("_", " "))
    _limits(axes, gates, GAPS, "worst")
    _log(axes, "largest difference")


def _drift(axes: Axes, report: ParityReport, gates: Gates) -> None:
    for name, colour in DRIFTS.items():
        if name in report.columns:
            column = report.columns[name]
            _line(axes, column.mean_S, column.count_S, colour, f"{name.replace('_', ' ')}, mean")
            _line(axes, column.worst_S, column.count_S, colour, "worst", style=":")
    _limits(axes, gates, DRIFTS, "mean")
    _log(axes, "norm of the difference / norm")


def _differences(axes: Axes, report: ParityReport, gates: Gates) -> None:
    del gates
    for name, colour in DIFFERENCES.items():
        column = report.columns[name]
        _line(axes, 100 * column.mean_S, column.count_S, colour, name.removeprefix("different_"))
    axes.set(xlabel="segment", ylabel="differ, in %", ylim=(0, max(1.0, axes.get_ylim()[1])))
    axes.legend(frameon=False)


def _growth(axes: Axes, report: ParityReport, gates: Gates) -> None:
    del gates
    column = report.columns["carry_growth"]
    axes.axhline(0, color=GREY, linewidth=0.8)
    _line(axes, column.mean_S, column.count_S, GREEN, "mean over puzzles")
    axes.set(xlabel="segment", ylabel="doublings per segment")
    axes.legend(frameon=False)


def _halts(axes: Axes, report: ParityReport, gates: Gates) -> None:
    del gates
    width = -(-report.num_segments // MOST_BARS)
    starts = np.arange(0, report.num_segments, width)
    sides = (
        (-0.2, report.reference_halts_S, BLUE, report.reference),
        (0.2, report.candidate_halts_S, ORANGE, report.candidate),
    )
    for shift, halts_S, colour, name in sides:
        middles = starts + (width + 1) / 2 + shift * width
        axes.bar(middles, np.add.reduceat(halts_S, starts), width=0.4 * width, color=colour, label=name)
    axes.set(xlabel="segments run", ylabel="puzzles")
    axes.legend(frameon=False)


def _losses(axes: Axes, report: ParityReport, gates: Gates) -> None:
    """Points of solves lost with their 95 % interval, above the most that the gates allow."""
    rows = [(report.exact, "exact", gates.end.exact_loss), (report.proven, "proven", gates.end.proven_loss)]
    shown = [(paired, title, limit) for paired, title, limit in rows if paired is not None]
    for height, (paired, _, limit) in enumerate(shown):
        low, high = paired.interval_points
        axes.plot([low, high], [height, height], color=BLUE, linewidth=2)
        axes.plot(paired.loss_points, height, "o", color=BLUE)
        if limit is not None:
            axes.plot([limit, limit], [height - 0.3, height + 0.3], color=RED, linestyle="--", linewidth=1)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [title for _, title, _ in shown])
    axes.set(xlabel="percentage points lost (95 % interval; dashed: gate)", ylim=(-0.6, len(shown) - 0.4))


def _line(
    axes: Axes, value_S: NDArray[np.float64], count_S: NDArray[np.int64], colour: str, label: str, style: str = "-"
) -> None:
    segment_S = np.flatnonzero((count_S > 0) & np.isfinite(value_S))
    marker = "." if len(segment_S) < 40 else ""
    axes.plot(segment_S + 1, value_S[segment_S], style, color=colour, marker=marker, linewidth=1.4, label=label)


def _limits(axes: Axes, gates: Gates, names: Iterable[Measure], how: How) -> None:
    """The lines of the gates, dashed: over the whole width, or a stroke at the first segment."""
    for limits, end in ((gates.every_segment, 1.0), (gates.first_segment, 0.08)):
        for limit in {limits.by(how).get(name) for name in names} - {None, 0.0}:
            assert limit is not None
            axes.axhline(limit, 0, end, color=RED, linewidth=1, linestyle="--")
            at = (0.01, limit)
            axes.annotate(f"gate {limit:g}", at, xycoords=("axes fraction", "data"), color=RED, va="bottom", fontsize=7)


def _log(axes: Axes, label: str) -> None:
    """A logarithmic axis, unless everything is exactly zero, which has no place on one."""
    if any((np.asarray(line.get_ydata(), float) > 0).any() for line in axes.get_lines()):
        axes.set_yscale("log", nonpositive="clip")
    axes.set(xlabel="segment", ylabel=label)
    axes.legend(frameon=False)
