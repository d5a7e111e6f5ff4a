"""A real bundle around any step graph; the sizes in its manifest are read from the graph."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.contract.manifest import write_manifest
from hrm_edge_runtime.engines.engine import AXES

PRECISIONS = ("fp32", "fp16", "int8")


def step_graph(text: str, constants: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        stored = onnx.numpy_helper.from_array(array, name)
        model.graph.initializer.append(stored)
    onnx.checker.check_model(model, full_check=True)
    return model


def write_step_bundle(
    path: Path,
    *graphs: onnx.ModelProto,
    name: str,
    table_PE: np.ndarray,
    max_segments: int,
    puzzle: str = "sudoku-4x4",
    golden: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a bundle of one to three graphs of one function: float32, float16 and INT8."""
    path.mkdir()
    precisions = {}
    for precision, graph in zip(PRECISIONS, graphs, strict=False):
        precisions[precision] = f"step.{precision}.onnx"
        onnx.save(graph, path / precisions[precision])
    np.save(path / "puzzle_table.npy", table_PE)
    tasks = [f"task-{row}" for row in range(1, len(table_PE))]
    (path / "identifiers.json").write_text(json.dumps(["<blank>", *tasks]))
    if golden is not None:
        np.savez(path / "golden.npz", allow_pickle=False, **golden)
    write_manifest(
        path,
        name=name,
        puzzle=puzzle,
        num_puzzle_ids=len(table_PE),
        max_segments=max_segments,
        halting={"policy": "verified", "threshold": 0.0},
        precisions=precisions,
        **_sizes(graphs[0]),
    )
    return path


def _sizes(graph: onnx.ModelProto) -> dict[str, int]:
    sizes = {}
    for value in (*graph.graph.input, *graph.graph.output):
        _, *dims = value.type.tensor_type.shape.dim
        for axis, dim in zip(AXES.get(value.name, ()), dims, strict=False):
            sizes[axis] = dim.dim_value
    return sizes
