"""A real bundle around any step graph; the sizes in its manifest are read from the graph."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.contract.manifest import write_manifest

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


def _sizes(graph: onnx.ModelProto) -> dict[str, Any]:
    shape_of = {}
    for value in (*graph.graph.input, *graph.graph.output):
        dims = value.type.tensor_type.shape.dim
        shape_of[value.name] = [dim.dim_value for dim in dims]
    _, num_positions, hidden_size = shape_of["z_high_BND"]
    _, seq_len, vocab_size = shape_of["logits_BTV"]
    _, puzzle_vector_size = shape_of["puzzle_vector_BE"]
    return {
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "num_positions": num_positions,
        "hidden_size": hidden_size,
        "puzzle_vector_size": puzzle_vector_size,
    }
