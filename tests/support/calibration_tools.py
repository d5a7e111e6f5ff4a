"""Small real step graphs, puzzles for them, and a way to run them."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from export_tools import random_inputs as inputs_of_model
from export_tools import run_once, small_model

from hrm_export.segment import segment_graph
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_made

SUDOKU = registry.get("sudoku-4x4")


def small_graph(**changes: Any) -> onnx.ModelProto:
    """Each low matrix has four call sites and each high one two."""
    model = small_model(**{"low_layers": 1, **changes})
    return segment_graph(model)


def table(rows: int = 3) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, 32)).astype(np.float32)


def questions(count: int) -> Questions:
    ids_N = np.arange(count, dtype=np.int32) % 3
    return replace(questions_made(SUDOKU, count, difficulty="easy"), puzzle_ids_N=ids_N)


def random_inputs(count: int) -> dict[str, np.ndarray]:
    """Return inputs of a running batch in which every third row is fresh."""
    inputs = inputs_of_model(small_model(), count)
    inputs["fresh_B"][::3] = True
    return inputs


def run(
    graph: onnx.ModelProto, inputs: dict[str, np.ndarray], *, optimized: bool = False
) -> dict[str, np.ndarray]:
    """Run a graph once, node by node as written or with ONNX Runtime's fused kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return run_once(graph, inputs, options)
