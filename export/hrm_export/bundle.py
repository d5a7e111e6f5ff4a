"""Write judged precisions as a bundle, and print what it holds. Read `write_bundle`.

Files are written beside the bundle's name and renamed at the end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hrm_calibration.attempts import NUM_ATTEMPTS, TaskScores
from hrm_calibration.forms import Form
from hrm_calibration.graph_rules import check_graph
from hrm_calibration.judge import JudgedForms
from hrm_edge_runtime.contract.bundle import (
    GOLDEN_NAME,
    IDENTIFIERS_NAME,
    PUZZLE_TABLE_NAME,
    TASKS_NAME,
    Bundle,
    puzzle_of,
)
from hrm_edge_runtime.contract.card import card_of
from hrm_edge_runtime.contract.manifest import CARD_NAME, TaskResults, write_manifest
from hrm_edge_runtime.engines import times
from hrm_export.contents import Contents
from hrm_export.onnx_graph import unrolled_graph
from hrm_export.torch_engine import SIZES
from hrm_host import atomic
from hrm_host.reading import counted

MANY = 8
"""Puzzles of the second batch that is timed."""
NOTHING = "–"

Page = dict[str, Any]


def write_bundle(
    path: Path,
    contents: Contents,
    judged: JudgedForms,
    num_unrolled: int | None,
) -> None:
    """Write the whole bundle or nothing; FileExistsError if `path` exists.

    `num_unrolled` is the number of segments of the unrolled graphs, see `write_unrolled`.
    """
    forms = judged.forms
    with atomic.new_directory(path) as unfinished:
        for form in forms:
            for name, graph in form.files.items():
                (unfinished / name).write_bytes(graph.SerializeToString(deterministic=True))
        unrolled = write_unrolled(unfinished, forms, num_unrolled)
        write_data(unfinished, contents, judged)
        fields = manifest_fields(contents, judged, unrolled)
        write_manifest(unfinished, **fields)
        manifest = Bundle.open(unfinished).manifest
        card = card_of(manifest, puzzle_of(manifest), path)
        (unfinished / CARD_NAME).write_text(card, encoding="utf-8")


def write_unrolled(
    directory: Path,
    forms: Sequence[Form],
    num_segments: int | None,
) -> dict[str, str]:
    """Write the unrolled graph of every precision; return the file names by precision.

    `num_segments` None writes nothing; 0 means as many as the policy allows.
    """
    if num_segments is None:
        return {}
    names: dict[str, str] = {}
    for form in forms:
        count = num_segments or form.policy.max_segments
        graph = unrolled_graph(form.portable, form.policy, count)
        check_graph(graph)
        name = f"unrolled.{form.precision}.onnx"
        (directory / name).write_bytes(graph.SerializeToString(deterministic=True))
        names[form.precision] = name
    return names


def write_data(directory: Path, contents: Contents, judged: JudgedForms) -> None:
    """Write the puzzle table, the names of its rows, tasks if there are any, traces and parity.

    Tasks with right answers come first: a page begins with the first ones.
    """
    tasks = contents.exam.tasks
    atomic.write_array(directory / PUZZLE_TABLE_NAME, contents.exam.served.puzzle_table)
    identifiers = json.dumps(list(contents.exam.identifiers))
    (directory / IDENTIFIERS_NAME).write_text(identifiers + "\n")
    if tasks:
        right: Sequence[str] = ()
        if judged.task_scores is not None:
            right = judged.task_scores.right
        right_first = {name: tasks[name] for name in right} | dict(tasks)
        text = json.dumps(right_first, separators=(",", ":"))
        (directory / TASKS_NAME).write_text(text + "\n")
    np.savez_compressed(directory / GOLDEN_NAME, allow_pickle=False, **vars(judged.golden))
    pages = {form.precision: form.as_json() for form in judged.forms}
    (directory / "parity.json").write_text(json.dumps(pages, indent=2) + "\n")


def manifest_fields(
    contents: Contents,
    judged: JudgedForms,
    unrolled: Mapping[str, str],
) -> dict[str, Any]:
    config = contents.model.config
    forms = judged.forms
    fp32 = forms[0]
    precisions: dict[str, str] = {}
    cpu_graphs: dict[str, str] = {}
    for form in forms:
        portable, *for_cpus = form.files
        precisions[form.precision] = portable
        if for_cpus:
            cpu_graphs[form.precision] = for_cpus[0]
    num_proven: dict[str, int] = fp32.origin["attempts"]
    return {
        "name": contents.name,
        "puzzle": contents.exam.served.puzzle.name,
        **{size: getattr(config, size) for size in SIZES},
        "max_segments": fp32.policy.max_segments,
        "halting": {"policy": fp32.policy.kind, "threshold": fp32.policy.threshold},
        "precisions": precisions,
        "cpu_graphs": cpu_graphs,
        "unrolled": unrolled,
        "undecided": {form.precision: form.undecided for form in forms if form.undecided},
        # the kind of further attempts that proved most puzzles
        "attempt_kind": max(num_proven, key=num_proven.__getitem__, default="symmetries"),
        "curves": {form.precision: form.halting_curve() for form in forms},
        **fields_of_tasks(contents, judged.task_scores),
    }


def fields_of_tasks(contents: Contents, scores: TaskScores | None) -> dict[str, Any]:
    """The results of held-out tasks, if there are any, and the provenance, which has them too."""
    provenance = contents.provenance()
    if scores is None:
        return {"held_out_tasks": None, "provenance": provenance}
    num_tasks = scores.num_tasks
    provenance["held_out"] = num_tasks
    provenance["solved"] = round(scores.num_right_at_once / num_tasks, 4)
    provenance["solved_16_attempts"] = round(len(scores.right) / num_tasks, 4)
    results = TaskResults(
        attempts=NUM_ATTEMPTS,
        num_tasks=num_tasks,
        right=scores.right,
        generated=list(contents.generated),
    )
    return {"held_out_tasks": results, "provenance": provenance}


def page_of(out: Path, contents: Contents, forms: Sequence[Form]) -> Page:
    """The JSON object, with one row for each precision in `precisions`.

    `auto` chooses by the times of the first batch from now on.
    """
    bundle = Bundle.open(out)
    times_ms = times.measure(bundle)
    many_ms = times.segment_times(bundle, MANY)
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
        "auto_on_cpu": times.fastest_of(times_ms, bundle.manifest.decided),
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
    segments = counted(report.num_segments, "segment")
    lines = [
        f"Halting {fp32.policy.kind}, at most {counted(fp32.policy.max_segments, 'segment')}; "
        f"{page['num_held_out']} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {segments} of "
        f"{report.num_puzzles} of {fp32.origin['num_candidates']} puzzles (others may amplify "
        "rounding). Times are CPU times of one thread of this machine.",
        f"auto serves {page['auto_on_cpu']} on this CPU: another precision than fp32 must hold its "
        f"accuracy and be {times.GAIN} times as fast.",
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
