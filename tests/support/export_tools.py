"""Small real models, puzzles for them, and ways to run their graphs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

from hrm_calibration.half import record_ranges
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_export.contents import served_graph
from hrm_export.segment import segment_graph
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_parity.cli import ParityOptions, compare_engines
from hrm_parity.report import ParityReport
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data import datasets
from hrm_puzzles.data.sources import Questions, questions_made
from hrm_puzzles.puzzle import Puzzle

SUDOKU = registry.get("sudoku-4x4")
GAIN = 0.7
"""Scales all matrices. A fresh model amplifies rounding, which would hide what the tests compare; a
trained model does not."""
TRM = {
    "arch": "trm",
    "high_layers": 2,
    "puzzle_positions": 3,
    "halt_rule": "q_halt",
    "max_segments": 8,
}
"""Changes that make `small_model` a TRM."""
TRM_MIXER = {**TRM, "blocks": "mixer", "positions": "none"}
SIZES = {
    "vocab_size": 6,
    "seq_len": 16,
    "hidden_size": 32,
    "num_heads": 2,
    "puzzle_vector_size": 32,
    "num_puzzle_ids": 3,
    "high_layers": 1,
    "low_layers": 2,
}


def small_model(*, seed: int = 0, gain: float = GAIN, **changes: Any) -> HRM:
    """Return a model of 4x4 Sudoku with two heads of width 16."""
    torch.manual_seed(seed)
    config = HRMConfig(**{**SIZES, **changes})
    model = model_of(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "level" in name:
                weights *= gain
        model.q_head.weight.normal_()
        model.puzzle_table.normal_()
    return model.eval()


def small_graph(**changes: Any) -> onnx.ModelProto:
    """Each low matrix has four call sites and each high one two."""
    return segment_graph(small_model(**{"low_layers": 1, **changes}))


def table() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(3, 32)).astype(np.float32)


def questions(count: int) -> Questions:
    ids_N = np.arange(count, dtype=np.int32) % 3
    return replace(questions_made(SUDOKU, count, difficulty="easy"), puzzle_ids_N=ids_N)


def relational_sizes(puzzle: str) -> dict[str, Any]:
    """Return changes that give `small_model` relational blocks of this puzzle."""
    kind = registry.get(puzzle)
    geometry = kind.geometry
    sizes = {"blocks": "relational", "expansion": 2.0, "halt_rule": "q_halt"}
    sizes["board"] = geometry.board
    sizes["num_symbols"] = geometry.num_symbols
    sizes["num_fixed"] = geometry.num_fixed
    sizes["hidden_size"] = 16 * geometry.num_symbols
    sizes["vocab_size"] = kind.vocab_size
    sizes["seq_len"] = kind.seq_len
    sizes["num_heads"] = 1
    sizes["puzzle_vector_size"] = 0
    if isinstance(kind, Arc):
        sizes["num_heads"] = 2
        sizes["puzzle_vector_size"] = 4 * geometry.num_symbols
    return sizes


def random_questions(model: HRM, count: int, seed: int = 0) -> Questions:
    rng = np.random.default_rng(seed)
    config = model.config
    shape = (count, config.seq_len)
    tokens_NT = rng.integers(1, config.vocab_size, shape, dtype=np.int32)
    ids_N = rng.integers(0, config.num_puzzle_ids, count, dtype=np.int32)
    return Questions(tokens_NT=tokens_NT, puzzle_ids_N=ids_N, labels_NT=tokens_NT, source="here")


def data_set(
    path: Path,
    puzzle: Puzzle,
    count: int,
    split: str = "test",
    names: Sequence[str] = (),
    **options: Any,
) -> Path:
    """Write a data set of fresh puzzles, whose ids have these names beside "<blank>"."""
    asked = questions_made(puzzle, count)
    datasets.write_split(path, split, asked.tokens_NT, asked.labels_NT, puzzle=puzzle, **options)
    datasets.write_identifiers(path, names)
    return path


def engine_of(graph: onnx.ModelProto, model: HRM, questions: Questions, path: Path) -> OnnxEngine:
    """Return the real engine with every question loaded."""
    file = path / "step.onnx"
    file.write_bytes(graph.SerializeToString())
    engine = OnnxEngine(file, num_slots=len(questions), num_threads=1, want_logits=True)
    table = model.puzzle_table.numpy()
    for slot, puzzle_id in enumerate(questions.puzzle_ids_N.tolist()):
        engine.load(slot, questions.tokens_NT[slot], table[puzzle_id])
    return engine


def ranges_of(model: HRM, puzzle: Puzzle, segments: int = 1) -> dict[str, float]:
    """The ranges that random questions reach in so many segments."""
    policy = HaltingPolicy(kind="fixed", max_segments=segments)
    return record_ranges(served_graph(model, puzzle, policy), random_questions(model, 4))


def replayed(bundle: Bundle, precision: str = "fp32") -> ParityReport:
    options = ParityOptions(engine=f"cpu:{precision}")
    return compare_engines(bundle, options).report


def run(
    graph: onnx.ModelProto, inputs: dict[str, np.ndarray], *, optimized: bool = False
) -> dict[str, np.ndarray]:
    """Run a graph once, node by node as written or with ONNX Runtime's fused kernels.

    Inputs that the graph lacks are ignored.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = graph.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    fed = {value.name: inputs[value.name] for value in session.get_inputs()}
    outputs = session.run(names, fed)
    return dict(zip(names, outputs, strict=True))


def random_inputs(model: HRM, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    config = model.config
    questions = random_questions(model, count)
    table = model.puzzle_table.numpy()
    carry = (count, config.num_positions, config.hidden_size)
    inputs = {}
    inputs["tokens_BT"] = questions.tokens_NT
    inputs["puzzle_vector_BE"] = table[questions.puzzle_ids_N]
    inputs["fresh_B"] = np.zeros(count, np.bool_)
    inputs["z_high_BND"] = rng.normal(size=carry).astype(np.float32)
    inputs["z_low_BND"] = rng.normal(size=carry).astype(np.float32)
    return inputs
