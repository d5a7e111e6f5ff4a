"""Shipped bundles, real bundles around any step graph, and packages that look installed."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.contract.archive import Archive
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import read_manifest, write_manifest
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import AXES


@cache
def shipped(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


def step_graph(text: str, constants: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        stored = onnx.numpy_helper.from_array(array, name)
        model.graph.initializer.append(stored)
    onnx.checker.check_model(model, full_check=True)
    return model


def write_step_bundle(
    path: Path,
    graph: onnx.ModelProto,
    *,
    name: str,
    table_PE: np.ndarray,
    max_segments: int,
    puzzle: str = "sudoku-4x4",
) -> Path:
    """Write a bundle without golden traces; the sizes in its manifest are read from the graph."""
    path.mkdir()
    onnx.save(graph, path / "step.fp32.onnx")
    np.save(path / "puzzle_table.npy", table_PE)
    tasks = [f"task-{row}" for row in range(1, len(table_PE))]
    (path / "identifiers.json").write_text(json.dumps(["<blank>", *tasks]))
    sizes = {}
    for value in (*graph.graph.input, *graph.graph.output):
        _, *dims = value.type.tensor_type.shape.dim
        for axis, dim in zip(AXES.get(value.name, ()), dims, strict=False):
            sizes[axis] = dim.dim_value
    write_manifest(
        path,
        name=name,
        puzzle=puzzle,
        num_puzzle_ids=len(table_PE),
        max_segments=max_segments,
        halting={"policy": "verified", "threshold": 0.0},
        precisions={"fp32": "step.fp32.onnx"},
        **sizes,
    )
    return path


def restate(bundle: Path, **changes: object) -> None:
    """Change the manifest and let its hashes match the files again."""
    fields = read_manifest(bundle).model_dump(exclude={"files"})
    write_manifest(bundle, **{**fields, **changes})


def with_manifest(bundle: Any, **changes: object) -> Any:
    """The same bundle, or served model, whose manifest has these changes in memory alone."""
    return replace(bundle, manifest=bundle.manifest.model_copy(update=changes))


def archived(bundle: Path) -> bytes:
    """The bundle as a client sends it."""
    archive = Archive(bundle)
    body = b"".join(archive.pieces())
    assert len(body) == archive.num_bytes
    return body


def turn_head(bundle: Path) -> onnx.ModelProto:
    """The graph of a bundle whose head says the opposite; its golden traces do not hold."""
    turned = onnx.load(bundle / "step.fp32.onnx")
    head = next(tensor for tensor in turned.graph.initializer if tensor.name == "head_DV")
    opposite = -onnx.numpy_helper.to_array(head)
    head.CopyFrom(onnx.numpy_helper.from_array(opposite, head.name))
    return turned


def install(folder: Path, entry_points: str) -> None:
    """Let a folder on Python's path pass for an installed package with these entry points."""
    info = folder / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
