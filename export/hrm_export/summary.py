"""What `hrm-export` prints about a finished bundle: a table, or one JSON object."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hrm_calibration.forms import Form
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import cpu_times
from hrm_export.contents import Contents

MANY = 8
"""Puzzles of the second batch that is timed."""
NOTHING = "–"

Page = dict[str, Any]


def page_of(out: Path, contents: Contents, forms: Sequence[Form]) -> Page:
    """The JSON object, with one row for each precision in `precisions`.

    `auto` chooses by the times of the first batch from now on.
    """
    bundle = Bundle.open(out)
    times_ms = cpu_times.measure(bundle)
    many_ms = cpu_times.segment_times(bundle, MANY)
    fp32 = forms[0]
    rows: list[Page] = []
    for form in forms:
        precision = form.precision
        segment_ms = {1: times_ms[precision], MANY: many_ms[precision]}
        rows.append({**figures(form, bundle), "segment_ms": segment_ms})
    for row in rows:
        row["ratio"] = row["size_bytes"] / rows[0]["size_bytes"]
    return {
        "bundle": str(out),
        "name": contents.name,
        "puzzle": bundle.manifest.puzzle,
        "num_parameters": contents.model.num_parameters,
        "halting": {"policy": fp32.policy.kind, "max_segments": fp32.policy.max_segments},
        "num_held_out": fp32.score.num_puzzles,
        "precisions": rows,
        "auto_on_cpu": cpu_times.fastest_of(times_ms, bundle.manifest.decided),
    }


def figures(form: Form, bundle: Bundle) -> Page:
    """Figures of one precision, measured with the graph that a CPU runs."""
    size_bytes, *cpu_bytes = (bundle.manifest.files[name].size_bytes for name in form.files)
    score = form.score
    lost: dict[str, Any] = {}
    for name, pair in (form.lost or {}).items():
        lost[name] = asdict(pair)
    return {
        "precision": form.precision,
        "size_bytes": size_bytes,
        "cpu_size_bytes": cpu_bytes[0] if cpu_bytes else None,
        "logit_gap": form.parity_on_cpu.max_logit_gap,
        "exact": score.exact,
        "proven": score.proven,
        "mean_segments": score.mean_segments,
        "threshold": form.policy.threshold,
        "num_puzzles": score.num_puzzles,
        "lost": lost.get("exact"),
        "proofs_lost": lost.get("proven"),
        "undecided": form.undecided,
    }


def print_table(page: Page, fp32: Form) -> None:
    title = f"{page['bundle']} ({page['puzzle']}, {page['num_parameters']:,} parameters)"
    rows = page["precisions"]
    table = Table("", *(row["precision"] for row in rows), title=title, title_justify="left")
    columns = [cells(row) for row in rows]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console = Console()
    console.print(table)
    report = fp32.parity_on_cpu
    lines = [
        f"Halting {fp32.policy.kind}, at most {fp32.policy.max_segments} segments; "
        f"{page['num_held_out']} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of "
        f"{report.num_puzzles} of {fp32.origin['num_candidates']} puzzles (others may amplify "
        "rounding). Times are CPU times of one thread of this machine.",
        f"auto serves {page['auto_on_cpu']} on this CPU: another precision than fp32 must hold its "
        f"accuracy and be {cpu_times.GAIN} times as fast.",
    ]
    for row in rows:
        if row["undecided"] is not None:
            name = row["precision"]
            lines.append(
                f"{name} is undecided: {row['undecided']}. auto does not choose it; "
                f"--engine cpu:{name} and tensorrt:{name} do."
            )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def cells(row: Page) -> dict[str, str]:
    """The cells of one precision's column, by the names of the rows."""
    cpu_bytes = NOTHING
    if row["cpu_size_bytes"] is not None:
        cpu_bytes = f"{row['cpu_size_bytes']:,} bytes"
    column = {
        "file": f"{row['size_bytes']:,} bytes",
        "of fp32": f"{row['ratio']:.3f}",
        "form for CPUs": cpu_bytes,
        "logit gap to PyTorch": f"{row['logit_gap']:.1e}",
        "held-out puzzles": f"{row['num_puzzles']:,}",
        "exact solves": f"{100 * row['exact']:.1f} %",
        "points lost (95 %)": loss_cell(row["lost"]),
        "verified solves": f"{100 * row['proven']:.1f} %",
        "proofs lost (95 %)": loss_cell(row["proofs_lost"]),
        "mean segments": f"{row['mean_segments']:.2f}",
        "halting threshold": f"{row['threshold']:.3g}",
    }
    for batch, time_ms in row["segment_ms"].items():
        column[f"segment, batch {batch}"] = f"{time_ms:.2f} ms"
    return column


def loss_cell(lost: Mapping[str, float] | None) -> str:
    if lost is None:
        return NOTHING
    points = 100 * lost["loss"]
    low = 100 * lost["low"]
    high = 100 * lost["high"]
    return f"{points:.2f} ({low:.2f} to {high:.2f})"
