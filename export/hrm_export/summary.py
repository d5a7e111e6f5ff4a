"""What `hrm-export` prints about a finished bundle: a table, or one JSON object."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import cpu_times
from hrm_export.contents import Contents
from hrm_export.forms import Form

MANY = 8
"""Puzzles of the second batch that is timed."""
NOTHING = "–"

Row = Mapping[str, Any]


def print_json(out: Path, contents: Contents, forms: Sequence[Form]) -> None:
    policy = forms[0].policy
    bundle = Bundle.open(out)
    rows = rows_of(bundle, forms)
    page = {
        "bundle": str(out),
        "name": contents.name,
        "puzzle": contents.served.puzzle.name,
        "num_parameters": contents.model.num_parameters,
        "halting": {"policy": policy.kind, "max_segments": policy.max_segments},
        "num_held_out": forms[0].measured.score.num_puzzles,
        "precisions": rows,
        "auto_on_cpu": auto_on_cpu(bundle, rows),
    }
    print(json.dumps(page))


def print_table(out: Path, contents: Contents, forms: Sequence[Form]) -> None:
    bundle = Bundle.open(out)
    rows = rows_of(bundle, forms)
    puzzle = contents.served.puzzle.name
    title = f"{out} ({puzzle}, {contents.model.num_parameters:,} parameters)"
    precisions = [row["precision"] for row in rows]
    table = Table("", *precisions, title=title, title_justify="left")
    columns = [cells(row) for row in rows]
    names: dict[str, None] = {}
    for column in columns:
        names.update(dict.fromkeys(column))
    for name in names:
        table.add_row(name, *(column.get(name, NOTHING) for column in columns))
    console = Console()
    console.print(table)
    lines = [footnote(forms[0]), auto_line(auto_on_cpu(bundle, rows))]
    lines += [undecided_line(form) for form in forms if form.undecided is not None]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def footnote(fp32: Form) -> str:
    policy = fp32.policy
    report = fp32.parity_on_cpu
    num_candidates = fp32.origin["num_candidates"]
    return (
        f"Halting {policy.kind}, at most {policy.max_segments} segments; "
        f"{fp32.measured.score.num_puzzles} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of "
        f"{report.num_puzzles} of {num_candidates} puzzles (others may amplify rounding). "
        "Times are CPU times of one thread of this machine."
    )


def auto_on_cpu(bundle: Bundle, rows: Sequence[Row]) -> str:
    """The precision that `auto` serves on this CPU from now on, by the times of the table."""
    times_ms = {row["precision"]: row["segment_ms"][1] for row in rows}
    return cpu_times.fastest_of(times_ms, bundle.manifest.decided)


def auto_line(precision: str) -> str:
    return (
        f"auto serves {precision} on this CPU: another precision than fp32 must hold its accuracy "
        f"and be {cpu_times.GAIN} times as fast."
    )


def undecided_line(form: Form) -> str:
    return (
        f"{form.precision} is undecided: {form.undecided}. auto does not choose it; "
        f"--engine cpu:{form.precision} and tensorrt:{form.precision} do."
    )


def rows_of(bundle: Bundle, forms: Sequence[Form]) -> list[Row]:
    """One row for each precision. `auto` chooses by the times of the first batch from now on."""
    times_ms = {1: cpu_times.measure(bundle)}
    times_ms[MANY] = cpu_times.segment_times(bundle, MANY)
    files = bundle.manifest.files
    size_of = {name: entry.size_bytes for name, entry in files.items()}
    fp32_bytes = size_of[forms[0].graphs.file_name]
    rows: list[Row] = []
    for form in forms:
        row = figures(form, size_of)
        row["ratio"] = row["size_bytes"] / fp32_bytes
        row["segment_ms"] = {batch: by[form.precision] for batch, by in times_ms.items()}
        rows.append(row)
    return rows


def figures(form: Form, size_of: Mapping[str, int]) -> dict[str, Any]:
    """Figures of one precision, measured with the graph that a CPU runs."""
    graphs = form.graphs
    score = form.measured.score
    cpu_size_bytes = None
    if graphs.cpu is not None:
        cpu_size_bytes = size_of[list(graphs.files())[-1]]
    lost = None
    proofs_lost = None
    if form.lost is not None:
        lost = asdict(form.lost["exact"])
        proofs_lost = asdict(form.lost["proven"])
    return {
        "precision": form.precision,
        "size_bytes": size_of[graphs.file_name],
        "cpu_size_bytes": cpu_size_bytes,
        "logit_gap": form.parity_on_cpu.max_logit_gap,
        "exact": score.exact,
        "proven": score.proven,
        "mean_segments": score.mean_segments,
        "threshold": form.policy.threshold,
        "num_puzzles": score.num_puzzles,
        "lost": lost,
        "proofs_lost": proofs_lost,
        "undecided": form.undecided,
    }


def cells(row: Row) -> dict[str, str]:
    """The cells of one precision's column, by the names of the rows."""
    column = {
        "file": f"{row['size_bytes']:,} bytes",
        "of fp32": f"{row['ratio']:.3f}",
    }
    if row["cpu_size_bytes"] is not None:
        column["form for CPUs"] = f"{row['cpu_size_bytes']:,} bytes"
    column |= {
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
