"""Write judged precisions as a bundle. Read `write_bundle`.

Nothing is measured here. Files are written beside the bundle's name and renamed at the end.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from hrm_calibration.graph_rules import check_graph, stored_sizes
from hrm_edge_runtime.contract.bundle import (
    GOLDEN_NAME,
    IDENTIFIERS_NAME,
    PUZZLE_TABLE_NAME,
    TASKS_NAME,
    Bundle,
)
from hrm_edge_runtime.contract.manifest import write_manifest
from hrm_export.contents import Contents
from hrm_export.forms import Form
from hrm_export.precisions import JudgedForms
from hrm_export.task_results import TaskScores
from hrm_export.torch_engine import SIZES
from hrm_export.unrolled import unrolled_graph
from hrm_host import atomic

PARITY_NAME = "parity.json"


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
        write_graphs(unfinished, forms)
        unrolled = write_unrolled(unfinished, forms, num_unrolled)
        write_data(unfinished, contents, judged)
        write_parity(unfinished, forms)
        write_manifest(unfinished, **manifest_fields(contents, judged, unrolled))
        Bundle.open(unfinished)


def write_graphs(directory: Path, forms: Sequence[Form]) -> None:
    for form in forms:
        for name, graph in form.graphs.files().items():
            write_graph(directory / name, graph)


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
    stored = stored_sizes(forms[0].graphs.portable)
    names: dict[str, str] = {}
    for form in forms:
        count = num_segments or form.policy.max_segments
        graph = unrolled_graph(form.graphs.portable, form.policy, count)
        check_graph(graph, stored)
        name = f"unrolled.{form.precision}.onnx"
        write_graph(directory / name, graph)
        names[form.precision] = name
    return names


def write_graph(file: Path, graph: ModelProto) -> None:
    file.write_bytes(graph.SerializeToString(deterministic=True))


def write_data(directory: Path, contents: Contents, judged: JudgedForms) -> None:
    """Write the puzzle table, the names of its rows, the tasks if there are any, and the traces."""
    golden = judged.golden
    np.save(directory / PUZZLE_TABLE_NAME, contents.served.puzzle_table)
    identifiers = json.dumps(list(contents.identifiers))
    (directory / IDENTIFIERS_NAME).write_text(identifiers + "\n")
    if contents.tasks:
        tasks = in_order(contents.tasks, judged.task_scores)
        text = json.dumps(tasks, separators=(",", ":"))
        (directory / TASKS_NAME).write_text(text + "\n")
    np.savez_compressed(directory / GOLDEN_NAME, allow_pickle=False, **vars(golden))


def in_order(tasks: Mapping[str, Any], scores: TaskScores | None) -> dict[str, Any]:
    """The tasks, those with right answers first: a page begins with the first ones."""
    first: dict[str, Any] = {}
    if scores is not None:
        first = {name: tasks[name] for name in scores.in_order()}
    return first | dict(tasks)


def write_parity(directory: Path, forms: Sequence[Form]) -> None:
    pages = {form.precision: form.as_json() for form in forms}
    (directory / PARITY_NAME).write_text(json.dumps(pages, indent=2) + "\n")


def manifest_fields(
    contents: Contents,
    judged: JudgedForms,
    unrolled: Mapping[str, str],
) -> dict[str, Any]:
    config = contents.model.config
    forms = judged.forms
    fp32 = forms[0]
    cpu_graphs: dict[str, str] = {}
    for form in forms:
        if form.graphs.cpu is not None:
            cpu_graphs[form.precision] = list(form.graphs.files())[-1]
    scores = judged.task_scores
    results = None
    provenance = contents.provenance()
    if scores is not None:
        results = scores.results(contents.generated)
        provenance |= scores.shares()
    return {
        "name": contents.name,
        "puzzle": contents.served.puzzle.name,
        **{size: getattr(config, size) for size in SIZES},
        "max_segments": fp32.policy.max_segments,
        "halting": {"policy": fp32.policy.kind, "threshold": fp32.policy.threshold},
        "precisions": {form.precision: form.graphs.file_name for form in forms},
        "cpu_graphs": cpu_graphs,
        "unrolled": unrolled,
        "undecided": {form.precision: form.undecided for form in forms if form.undecided},
        "attempt_kind": best_attempts(fp32.origin["attempts"]),
        "curves": {form.precision: form.measured.halting_curve() for form in forms},
        "held_out_tasks": results,
        "provenance": provenance,
    }


def best_attempts(num_proven: Mapping[str, int]) -> str:
    """The kind of further attempts that proved most puzzles."""
    return max(num_proven, key=num_proven.__getitem__, default="symmetries")
