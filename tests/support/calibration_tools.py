"""Small real step graphs, puzzles for them, and a way to run them.

Shapes: B puzzles, N puzzles, T tokens, N positions, D hidden, E puzzle-vector width.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from export_tools import run_once, small_model

from hrm_export.segment import segment_graph
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions

SUDOKU = registry.get("sudoku-4x4")


def small_graph(**changes: Any) -> onnx.ModelProto:
    """Each low matrix has four call sites and each high one two."""
    model = small_model(**{"low_layers": 1, **changes})
    return segment_graph(model)


def table(rows: int = 3) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, 32)).astype(np.float32)


def questions(count: int, seed: int = 0) -> Questions:
    rng = np.random.default_rng(seed)
    examples = [SUDOKU.generate(rng, "easy") for _ in range(count)]
    tokens_NT = np.stack([SUDOKU.encode(example.question) for example in examples])
    labels_NT = np.stack([SUDOKU.encode(example.answer) for example in examples])
    ids_N = np.arange(count, dtype=np.int32) % 3
    return Questions(tokens_NT=tokens_NT, labels_NT=labels_NT, puzzle_ids_N=ids_N, source="here")


def random_inputs(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs of a running batch in which every third row is fresh."""
    rng = np.random.default_rng(seed)
    carry = (count, 17, 32)
    inputs: dict[str, np.ndarray] = {}
    inputs["tokens_BT"] = rng.integers(1, 6, (count, 16), dtype=np.int32)
    inputs["puzzle_vector_BE"] = rng.normal(size=(count, 32)).astype(np.float32)
    inputs["fresh_B"] = np.arange(count) % 3 == 0
    inputs["z_high_BND"] = rng.normal(size=carry).astype(np.float32)
    inputs["z_low_BND"] = rng.normal(size=carry).astype(np.float32)
    return inputs


def run(
    graph: onnx.ModelProto, inputs: dict[str, np.ndarray], *, optimised: bool = False
) -> dict[str, np.ndarray]:
    """Run a graph once, node by node as written or with ONNX Runtime's fused kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return run_once(graph, inputs, options)
