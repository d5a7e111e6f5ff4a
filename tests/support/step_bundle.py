"""A real bundle around any step graph: what its manifest says of sizes is read from the graph."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.contract.manifest import write_manifest


def step_graph(text: str, constants: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A graph in ONNX's own notation with its stored arrays."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def write_step_bundle(
    path: Path,
    *graphs: onnx.ModelProto,
    name: str,
    table_PE: np.ndarray,
    max_segments: int,
    puzzle: str = "sudoku-4x4",
    policy: str = "verified",
    tasks: Sequence[str] | None = None,
    golden: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """One to three graphs of one function: float32, float16 and INT8. `tasks` name the table's rows but the first."""
    path.mkdir()
    precisions = {name: f"step.{name}.onnx" for name in ("fp32", "fp16", "int8")[: len(graphs)]}
    for file, graph in zip(precisions.values(), graphs, strict=True):
        onnx.save(graph, path / file)
    np.save(path / "puzzle_table.npy", table_PE)
    tasks = [f"task-{row}" for row in range(1, len(table_PE))] if tasks is None else tasks
    (path / "identifiers.json").write_text(json.dumps(["<blank>", *tasks]))
    if golden is not None:
        np.savez(path / "golden.npz", allow_pickle=False, **golden)
    write_manifest(
        path,
        name=name,
        puzzle=puzzle,
        num_puzzle_ids=len(table_PE),
        max_segments=max_segments,
        halting={"policy": policy, "threshold": 0.0},
        precisions=precisions,
        **_sizes(graphs[0]),
    )
    return path


def _sizes(graph: onnx.ModelProto) -> dict[str, Any]:
    shape_of = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.graph.input, *graph.graph.output)
    }
    _, num_positions, hidden_size = shape_of["z_high_BND"]
    _, seq_len, vocab_size = shape_of["logits_BTV"]
    return {
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "num_positions": num_positions,
        "hidden_size": hidden_size,
        "puzzle_vector_size": shape_of["puzzle_vector_BE"][1],
    }
