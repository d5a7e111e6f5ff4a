"""A comparison as one page of HTML that needs nothing beside itself; drawing needs matplotlib. Shapes: S segments."""

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrm_edge_runtime.parity.comparison import Comparison
from hrm_edge_runtime.parity.measures import MEASURES, How, Measure
from hrm_edge_runtime.parity.report import Gates, ParityReport, segment_rows, summary_rows

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c1c1c; }
.verdict { padding: .7rem 1rem; font-weight: 600; } .verdict p { font-weight: 400; margin: .3rem 0 0; }
.passed { background: #e3f3e6; color: #1d5c2c; } .broken { background: #fbe6e4; color: #8c1d18; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td.number, th.number { text-align: right; } svg { width: 100%; height: auto; }
"""
PLOT_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "hrm-parity", "font.size": 9}
PLOTS: dict[str, tuple[How, tuple[Measure, ...]]] = {
    "largest gaps": ("worst", ("logit_gap", "halting_gap")),
    "drift, relative to the reference": ("mean", ("logit_drift", "carry_drift")),
    "shares that differ": ("mean", ("different_cells", "different_answers", "different_stops")),
}


def page_of(name: str, comparison: Comparison) -> str:
    """The whole page; `name` is the bundle's."""
    report, gates = comparison.report, comparison.gates
    title = escape(f"{name}: {report.candidate} against {report.reference}")
    head, *rows = segment_rows(report)
    parts = [
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{title}</title><style>{STYLE}</style></head>",
        f"<body><h1>{title}</h1>",
        _verdict(comparison),
        _table([], summary_rows(report)),
        f"<h2>Segment by segment</h2>{_plots(report, gates)}<div class=wide>{_table(head, rows)}</div>",
        "<h2>What is measured</h2>",
        _table([], ((measure.replace("_", " "), meaning) for measure, (_, meaning) in MEASURES.items())),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _verdict(comparison: Comparison) -> str:
    kind = "broken" if comparison.breaks else "passed"
    lines = [*map(str, comparison.breaks), *comparison.reasons]
    details = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<div class='verdict {kind}'>{escape(comparison.verdict.capitalize())}{details}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines: list[str] = []
    for tag, cells in [*([("th", head)] if head else []), *(("td", row) for row in rows)]:
        first, *others = map(escape, cells)
        kind = " class=number" if len(others) > 1 else ""
        lines.append(f"<tr><{tag}>{first}</{tag}>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for cell in others)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _plots(report: ParityReport, gates: Gates) -> str:
    """One SVG element: measures by segment, and where puzzles halt."""
    with mpl.rc_context(PLOT_STYLE):
        figure, text = Figure(figsize=(11, 6.4), layout="constrained"), io.StringIO()
        *by_segment, halts = figure.subplots(2, 2).flat
        for axes, (title, (how, names)) in zip(by_segment, PLOTS.items(), strict=True):
            _measures(axes, report, gates, how, names)
            axes.set(title=title, xlabel="segment")
        segment_S = np.arange(report.num_segments) + 1
        for shift, halts_S, name in (
            (-0.2, report.reference_halts_S, report.reference),
            (0.2, report.candidate_halts_S, report.candidate),
        ):
            halts.bar(segment_S + shift, halts_S, width=0.4, label=name)
        halts.set(title="where puzzles halt", xlabel="segments run", ylabel="puzzles")
        halts.legend(frameon=False)
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _measures(axes: Axes, report: ParityReport, gates: Gates, how: How, names: Sequence[Measure]) -> None:
    """Each measure as a line, and its gates dashed: at the first segment only a stroke."""
    for name in filter(report.columns.__contains__, names):
        column = report.columns[name]
        segment_S = np.flatnonzero((column.count_S > 0) & np.isfinite(column.by(how)))
        axes.plot(segment_S + 1, column.by(how)[segment_S], ".-", label=name.replace("_", " "))
    if "different_cells" not in names and any(np.any(np.asarray(line.get_ydata()) > 0) for line in axes.get_lines()):
        axes.set_yscale("log", nonpositive="clip")  # zero has no place on it
    for limits, end in ((gates.every_segment, 1.0), (gates.first_segment, 0.08)):
        for limit in {limit for by, name, limit in limits.each() if by == how and name in names and limit}:
            axes.axhline(limit, 0, end, color="C3", linestyle="--")
    axes.legend(frameon=False)
