"""Small real models and what to do with their graphs.

Shapes: B puzzles (N where they are only asked), T tokens, N positions, D hidden, E puzzle-vector width, V vocabulary.
4x4 Sudoku: T = 16, V = 6.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines
from hrm_edge_runtime.parity.report import ParityReport
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data.sources import Questions, questions_made
from hrm_puzzles.puzzle import Puzzle

GAIN = 0.7
"""On all matrices: a fresh model amplifies rounding (a trained one does not), and would drown what is compared here."""

TRM: dict[str, Any] = {
    "arch": "trm",
    "high_layers": 2,
    "puzzle_positions": 3,
    "halt_rule": "q_halt",
    "max_segments": 8,
}
"""What makes `small_model` a TRM."""
TRM_MIXER: dict[str, Any] = {**TRM, "blocks": "mixer", "positions": "none"}


def small_model(*, seed: int = 0, gain: float = GAIN, **changes: Any) -> HRM:
    """Two heads of width 16 on 4x4 Sudoku, everything random, also what starts as zero in training."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 6, "seq_len": 16, "hidden_size": 32, "num_heads": 2, "puzzle_vector_size": 32}
    model = HRM(HRMConfig(**{**sizes, "num_puzzle_ids": 3, "high_layers": 1, "low_layers": 2, **changes}))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "level" in name:
                weights *= gain
        model.q_head.weight.normal_()
        model.puzzle_table.normal_()
    return model.eval()


def relational_sizes(puzzle: str, channels: int = 16) -> dict[str, Any]:
    """What makes `small_model` one of the puzzle's own relations."""
    kind = registry.get(puzzle)
    geometry = kind.geometry
    return {
        "blocks": "relational",
        "board": geometry.board,
        "num_symbols": geometry.num_symbols,
        "num_fixed": geometry.num_fixed,
        "hidden_size": channels * geometry.num_symbols,
        "num_heads": 2 if isinstance(kind, Arc) else 1,
        "expansion": 2.0,
        "puzzle_vector_size": 4 * geometry.num_symbols if isinstance(kind, Arc) else 0,
        "vocab_size": kind.vocab_size,
        "seq_len": kind.seq_len,
        "halt_rule": "q_halt",
    }


def random_questions(model: HRM, count: int, seed: int = 0) -> Questions:
    rng, config = np.random.default_rng(seed), model.config
    tokens_NT = rng.integers(1, config.vocab_size, (count, config.seq_len), dtype=np.int32)
    ids_N = rng.integers(0, config.num_puzzle_ids, count, dtype=np.int32)
    return Questions(tokens_NT=tokens_NT, puzzle_ids_N=ids_N, labels_NT=tokens_NT, source="here")


def made_questions(puzzle: Puzzle, count: int) -> Questions:
    """Real puzzles."""
    return questions_made(puzzle, count, progress=lambda _done, _total: None)


def engine_of(graph: onnx.ModelProto, model: HRM, questions: Questions, path: Path) -> OnnxEngine:
    """The real engine with every question loaded."""
    file = path / "step.onnx"
    file.write_bytes(graph.SerializeToString())
    engine = OnnxEngine(file, num_slots=len(questions), num_threads=1, want_logits=True)
    table = model.puzzle_table.numpy()
    for slot, puzzle_id in enumerate(questions.puzzle_ids_N.tolist()):
        engine.load(slot, questions.tokens_NT[slot], table[puzzle_id])
    return engine


def replayed(bundle: Bundle, precision: str = "fp32") -> ParityReport:
    """The bundle's golden traces against its own graph."""
    return compare_engines(bundle, ParityOptions(engine=f"cpu:{precision}")).report


def run_once(
    graph: onnx.ModelProto, inputs: dict[str, np.ndarray], options: ort.SessionOptions | None = None
) -> dict[str, np.ndarray]:
    """One run of a graph by its names, without an engine around it; inputs the graph does not have are left out."""
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    known = {value.name for value in session.get_inputs()}
    outputs = session.run(names, {name: array for name, array in inputs.items() if name in known})
    return dict(zip(names, outputs, strict=True))


def random_inputs(model: HRM, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A carry that is under way, and no row fresh."""
    rng, config = np.random.default_rng(seed), model.config
    questions = random_questions(model, count, seed)
    carry = (count, config.num_positions, config.hidden_size)
    return {
        "tokens_BT": questions.tokens_NT,
        "puzzle_vector_BE": model.puzzle_table.numpy()[questions.puzzle_ids_N],
        "fresh_B": np.zeros(count, np.bool_),
        "z_high_BND": rng.normal(size=carry).astype(np.float32),
        "z_low_BND": rng.normal(size=carry).astype(np.float32),
    }
