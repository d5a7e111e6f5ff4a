"""A comparison as one page of HTML that needs nothing beside itself. Drawing it needs matplotlib.

Shapes: S segments.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hrm_edge_runtime.parity.comparison import Comparison
from hrm_edge_runtime.parity.measures import MEASURES, Float64, How, Measure
from hrm_edge_runtime.parity.report import Gates, ParityReport, segment_rows, summary_rows

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { margin: .6rem 0; padding: .7rem 1rem; border-radius: .4rem; font-weight: 600; }
.passed { background: #e3f3e6; color: #1d5c2c; } .broken { background: #fbe6e4; color: #8c1d18; }
.verdict p { font-weight: 400; margin: .3rem 0 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td.number, th.number { text-align: right; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; } figure { margin: 0; }
figcaption { font-weight: 600; } svg { width: 100%; height: auto; } .wide { overflow-x: auto; }
"""
PLOT_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hrm-parity",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SIZE_INCHES = (5.6, 3.2)
BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9822b", "#3a8a4d", "#b3261e", "#999999"
MOST_BARS = 24
COLOURS: dict[How, dict[Measure, str]] = {
    "worst": {"logit_gap": BLUE, "halting_gap": ORANGE},
    "mean": {"logit_drift": BLUE, "carry_drift": GREEN},
}
DIFFERENCES: dict[Measure, str] = {"different_cells": BLUE, "different_answers": ORANGE, "different_stops": GREEN}


def page_of(name: str, comparison: Comparison) -> str:
    """The whole page; `name` is the bundle's."""
    report, gates = comparison.report, comparison.gates
    title = f"{name}: {report.candidate} against {report.reference}"
    head, *rows = segment_rows(report)
    plots = _plots(report, gates).items()
    figures = (f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in plots)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _verdict(comparison),
        _table((), summary_rows(report)),
        "<h2>Segment by segment</h2>",
        f"<div class=plots>{''.join(figures)}</div>",
        "<div class=wide>",
        _table(head, rows),
        "</div><h2>Gates</h2>",
        _table(("gate", "limit"), _gate_rows(gates)),
        "<h2>What is measured</h2>",
        _table((), ((measure.replace("_", " "), meaning) for measure, (_, meaning) in MEASURES.items())),
    ]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _verdict(comparison: Comparison) -> str:
    kind = "broken" if comparison.breaks else "passed"
    lines = [*map(str, comparison.breaks), *comparison.reasons]
    lines += [f"Bisection: {comparison.bisection}."] if comparison.bisection else []
    details = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<div class='verdict {kind}'>{escape(comparison.verdict.capitalize())}{details}</div>"


def _gate_rows(gates: Gates) -> Iterable[tuple[str, str]]:
    for where, limits in (("first segment", gates.first_segment), ("every segment", gates.every_segment)):
        for how, measure, limit in limits.each():
            yield f"{how} {measure.replace('_', ' ')}, {where}", f"{limit:g}"
    for name, limit in gates.end.model_dump(exclude_none=True).items():
        yield f"{name.replace('_', ' ')} at the end", f"{limit:g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines: list[str] = []
    for tag, cells in [*([("th", head)] if head else []), *(("td", row) for row in rows)]:
        first, *others = map(escape, cells)
        kind = " class=number" if len(others) > 1 else ""
        lines.append(f"<tr><{tag}>{first}</{tag}>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for cell in others)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _plots(report: ParityReport, gates: Gates) -> dict[str, str]:
    """Each plot as an SVG element, by its title."""
    plots = {
        "Largest gaps": _drawn(lambda axes: _errors(axes, report, gates, "worst")),
        "Drift, relative to the reference": _drawn(lambda axes: _errors(axes, report, gates, "mean")),
        "Answers and stops that differ": _drawn(lambda axes: _differences(axes, report)),
        "Where puzzles halt": _drawn(lambda axes: _halts(axes, report)),
        "Solves lost": _drawn(lambda axes: _losses(axes, report, gates)),
    }
    if "carry_growth" in report.columns and report.num_segments > 1:
        plots["Growth of the carry's drift"] = _drawn(lambda axes: _growth(axes, report))
    return plots


def _drawn(draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if any(axes.get_legend_handles_labels()):
            axes.legend(frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _errors(axes: Axes, report: ParityReport, gates: Gates, how: How) -> None:
    """The gaps or drifts judged by `how`, with their gates as dashed lines: at the first segment only a stroke."""
    colours = {name: colour for name, colour in COLOURS[how].items() if name in report.columns}
    for name, colour in colours.items():
        column, title = report.columns[name], name.replace("_", " ")
        _line(axes, column.by(how), column.count_S, colour, f"{title}, {how}")
        if how == "mean":
            _line(axes, column.worst_S, column.count_S, colour, "worst", style=":")
    if any((np.asarray(line.get_ydata(), float) > 0).any() for line in axes.get_lines()):
        axes.set_yscale("log", nonpositive="clip")  # zero has no place on it
    for limits, end in ((gates.every_segment, 1.0), (gates.first_segment, 0.08)):
        for limit in {limit for by, name, limit in limits.each() if by == how and name in COLOURS[how]} - {0.0}:
            axes.axhline(limit, 0, end, color=RED, linewidth=1, linestyle="--")
            at = (0.01, limit)
            axes.annotate(f"gate {limit:g}", at, xycoords=("axes fraction", "data"), color=RED, va="bottom", fontsize=7)
    label = "largest difference" if how == "worst" else "norm of the difference / norm"
    axes.set(xlabel="segment", ylabel=label)


def _differences(axes: Axes, report: ParityReport) -> None:
    for name, colour in DIFFERENCES.items():
        column = report.columns[name]
        _line(axes, 100 * column.mean_S, column.count_S, colour, name.removeprefix("different_"))
    axes.set(xlabel="segment", ylabel="differ, in %", ylim=(0, max(1.0, axes.get_ylim()[1])))


def _growth(axes: Axes, report: ParityReport) -> None:
    column = report.columns["carry_growth"]
    axes.axhline(0, color=GREY, linewidth=0.8)
    _line(axes, column.mean_S, column.count_S, GREEN, "mean over puzzles")
    axes.set(xlabel="segment", ylabel="doublings per segment")


def _halts(axes: Axes, report: ParityReport) -> None:
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


def _losses(axes: Axes, report: ParityReport, gates: Gates) -> None:
    """Points of solves lost with their 95 % interval, above the most that the gates allow."""
    rows = [(report.exact, "exact", gates.end.exact_loss), (report.proven, "proven", gates.end.proven_loss)]
    shown = [(counts, title, limit) for counts, title, limit in rows if counts is not None]
    for height, (counts, _, limit) in enumerate(shown):
        axes.plot(counts.interval_points, [height, height], color=BLUE, linewidth=2)
        axes.plot(counts.loss_points, height, "o", color=BLUE)
        if limit is not None:
            axes.plot([limit, limit], [height - 0.3, height + 0.3], color=RED, linestyle="--", linewidth=1)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [title for _, title, _ in shown])
    axes.set(xlabel="percentage points lost (95 % interval; dashed: gate)", ylim=(-0.6, len(shown) - 0.4))


def _line(axes: Axes, value_S: Float64, count_S: NDArray[np.int64], colour: str, label: str, style: str = "-") -> None:
    segment_S = np.flatnonzero((count_S > 0) & np.isfinite(value_S))
    marker = "." if len(segment_S) < 40 else ""
    axes.plot(segment_S + 1, value_S[segment_S], style, color=colour, marker=marker, linewidth=1.4, label=label)
