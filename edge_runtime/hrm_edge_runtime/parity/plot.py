"""A comparison as one PNG picture: the measures and the halts by segment. Shapes: S segments."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrm_edge_runtime.parity.measures import MEASURES
from hrm_edge_runtime.parity.report import ParityReport

SIZE_INCHES = (11, 4.5)
BAR_WIDTH = 0.4  # two bars share the width of one segment


def write_plot(path: Path, title: str, report: ParityReport) -> None:
    """Draw the report into the PNG file `path`."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    measures, halts = figure.subplots(1, 2)
    _draw_measures(measures, report)
    _draw_halts(halts, report)
    figure.savefig(path, format="png")


def _draw_measures(axes: Axes, report: ParityReport) -> None:
    """Draw one line per measure; the logarithmic axis cannot show zeros."""
    num_points = 0
    for name, how in MEASURES.items():
        if name not in report.columns:
            continue
        column = report.columns[name]
        value_S = column.by(how)
        is_shown_S = (column.count_S > 0) & np.isfinite(value_S) & (value_S > 0)
        index_S = np.flatnonzero(is_shown_S)
        num_points += len(index_S)
        label = name.replace("_", " ")
        axes.plot(index_S + 1, value_S[index_S], ".-", label=f"{label}, {how}")
    if num_points:
        axes.set_yscale("log")
    axes.set(title="difference", xlabel="segment")
    axes.legend(frameon=False)


def _draw_halts(axes: Axes, report: ParityReport) -> None:
    segment_S = np.arange(report.num_segments) + 1
    left_S = segment_S - BAR_WIDTH / 2
    right_S = segment_S + BAR_WIDTH / 2
    axes.bar(left_S, report.reference_halts_S, width=BAR_WIDTH, label=report.reference)
    axes.bar(right_S, report.candidate_halts_S, width=BAR_WIDTH, label=report.candidate)
    axes.set(title="segments until a puzzle halts", xlabel="segments", ylabel="puzzles")
    axes.legend(frameon=False)
