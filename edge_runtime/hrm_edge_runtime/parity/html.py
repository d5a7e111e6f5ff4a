"""A comparison as one page of HTML that needs nothing beside itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hrm_edge_runtime.parity.comparison import Findings
from hrm_edge_runtime.parity.measures import MEASURES
from hrm_edge_runtime.parity.plots import plots_of
from hrm_edge_runtime.parity.report import segment_rows, summary_rows
from hrm_edge_runtime.parity.tally import HOW

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


def page_of(name: str, findings: Findings) -> str:
    """The whole page; `name` is the bundle's."""
    report = findings.report
    title = f"{name}: {report.candidate} against {report.reference}"
    head, *rows = segment_rows(report)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _verdict(findings),
        _table((), summary_rows(report)),
        "<h2>Segment by segment</h2>",
        _plots(findings),
        "<div class=wide>",
        _table(head, rows),
        "</div><h2>Gates</h2>",
        _table(("gate", "limit"), _gate_rows(findings)),
        "<h2>What is measured</h2>",
        _table((), ((measure.replace("_", " "), meaning) for measure, meaning in MEASURES.items())),
    ]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _verdict(findings: Findings) -> str:
    kind = "broken" if findings.breaks else "passed"
    lines = [*map(str, findings.breaks), *findings.reasons]
    lines += [f"Bisection: {findings.bisection}."] if findings.bisection else []
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<div class='verdict {kind}'>{escape(findings.verdict.capitalize())}{told}</div>"


def _plots(findings: Findings) -> str:
    plots = plots_of(findings.report, findings.gates)
    figures = (f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in plots.items())
    return f"<div class=plots>{''.join(figures)}</div>"


def _gate_rows(findings: Findings) -> Iterable[tuple[str, str]]:
    gates = findings.gates
    for where, limits in (("first segment", gates.first_segment), ("every segment", gates.every_segment)):
        for how in HOW:
            for measure, limit in limits.by(how).items():
                yield f"{how} {measure.replace('_', ' ')}, {where}", f"{limit:g}"
    for name, limit in gates.end.model_dump(exclude_none=True).items():
        yield f"{name.replace('_', ' ')} at the end", f"{limit:g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head, "th")] if head else []
    return f"<table>{''.join([*lines, *(_row(row, 'td') for row in rows)])}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    first, *others = map(escape, cells)
    kind = " class=number" if len(others) > 1 else ""
    return f"<tr><{tag}>{first}</{tag}>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for cell in others)}</tr>"
