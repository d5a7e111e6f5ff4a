"""Write judged precisions as a bundle. Read `write_bundle`.

Nothing is measured here. Files are written beside the bundle's name and renamed at the end.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from hrm_calibration.attempts import NUM_ATTEMPTS
from hrm_calibration.forms import Form
from hrm_calibration.graph_rules import check_graph
from hrm_calibration.judge import JudgedForms
from hrm_edge_runtime.contract.bundle import (
    GOLDEN_NAME,
    IDENTIFIERS_NAME,
    PUZZLE_TABLE_NAME,
    TASKS_NAME,
    Bundle,
)
from hrm_edge_runtime.contract.manifest import TaskResults, write_manifest
from hrm_export.contents import Contents
from hrm_export.torch_engine import SIZES
from hrm_export.unrolled import unrolled_graph
from hrm_host import atomic


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
                write_graph(unfinished / name, graph)
        unrolled = write_unrolled(unfinished, forms, num_unrolled)
        write_data(unfinished, contents, judged)
        write_parity(unfinished, forms)
        fields = manifest_fields(contents, judged, unrolled)
        write_manifest(unfinished, **fields)
        Bundle.open(unfinished)


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
        write_graph(directory / name, graph)
        names[form.precision] = name
    return names


def write_graph(file: Path, graph: ModelProto) -> None:
    file.write_bytes(graph.SerializeToString(deterministic=True))


def write_data(directory: Path, contents: Contents, judged: JudgedForms) -> None:
    """Write the puzzle table, the names of its rows, the tasks if there are any, and the traces."""
    golden = judged.golden
    np.save(directory / PUZZLE_TABLE_NAME, contents.exam.served.puzzle_table)
    identifiers = json.dumps(list(contents.exam.identifiers))
    (directory / IDENTIFIERS_NAME).write_text(identifiers + "\n")
    if contents.exam.tasks:
        text = json.dumps(right_first(contents, judged), separators=(",", ":"))
        (directory / TASKS_NAME).write_text(text + "\n")
    np.savez_compressed(directory / GOLDEN_NAME, allow_pickle=False, **vars(golden))


def right_first(contents: Contents, judged: JudgedForms) -> dict[str, Any]:
    """The tasks, those with right answers first: a page begins with the first ones."""
    tasks = contents.exam.tasks
    first: dict[str, Any] = {}
    if judged.task_scores is not None:
        first = {name: tasks[name] for name in judged.task_scores.right}
    return first | dict(tasks)


def write_parity(directory: Path, forms: Sequence[Form]) -> None:
    pages = {form.precision: form.as_json() for form in forms}
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
    scores = judged.task_scores
    results = None
    provenance = contents.provenance()
    if scores is not None:
        results = TaskResults(
            attempts=NUM_ATTEMPTS,
            num_tasks=scores.num_tasks,
            right=scores.right,
            generated=list(contents.generated),
        )
        provenance["held_out"] = scores.num_tasks
        provenance["solved"] = round(scores.num_right_at_once / scores.num_tasks, 4)
        provenance["solved_16_attempts"] = round(len(scores.right) / scores.num_tasks, 4)
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
        "held_out_tasks": results,
        "provenance": provenance,
    }
