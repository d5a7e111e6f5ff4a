"""A step graph small enough to read, and a bundle around it: both real files.

Shapes: B slots, S segments, P puzzle ids, T = 16 tokens, N = 17 positions, D = E = 8, V = 6 (the
4x4 Sudoku).
"""

from pathlib import Path

import numpy as np
from bundle_tools import restate, step_graph, write_step_bundle

from hrm_edge_runtime.engines.onnx import OnnxEngine

SEQ_LEN = 16
VOCAB_SIZE = 6
NUM_POSITIONS = 17
WIDTH = 8
NUM_PUZZLE_IDS = 3
MAX_SEGMENTS = 6
NUM_TRACES = 5
TRACES = ("answer_SBT", "halt_margin_SB", "q_halt_SB", "logits_SBTV")

# Counts its segments in the carry (z_high[:, 0, 0]), and wants to halt from segment
# 1 + (sum of the tokens modulo 7) on.
TINY_STEP = """
<ir_version: 10, opset_import: ["" : 20]>
tiny_step (int32[B,16] tokens_BT, float[B,8] puzzle_vector_BE, bool[B] fresh_B,
           float[B,17,8] z_high_BND, float[B,17,8] z_low_BND)
  => (float[B,17,8] z_high_BND_next, float[B,17,8] z_low_BND_next, int32[B,16] answer_BT,
      float[B] halt_margin_B, float[B] q_halt_B, float[B,16,6] logits_BTV)
{
  fresh_B11 = Unsqueeze (fresh_B, axes_12)
  high_BND = Where (fresh_B11, initial_ND, z_high_BND)
  low_BND = Where (fresh_B11, initial_ND, z_low_BND)
  embedded_BTD = Gather (embedding_VD, tokens_BT)
  vector_B1D = Unsqueeze (puzzle_vector_BE, axis_1)
  input_BND = Concat <axis = 1> (vector_B1D, embedded_BTD)
  carry_BND = Add (low_BND, high_BND)
  seen_BND = Add (carry_BND, input_BND)
  mixed_BND = MatMul (mixing_NN, seen_BND)
  turned_BND = MatMul (mixed_BND, low_DD)
  positive_BND = Sigmoid (turned_BND)
  z_low_BND_next = Sub (positive_BND, half)
  thought_BND = Add (high_BND, z_low_BND_next)
  raised_BND = MatMul (thought_BND, high_DD)
  squeezed_BND = Sigmoid (raised_BND)
  bounded_BND = Sub (squeezed_BND, half)
  counted_BND = Add (high_BND, one)
  z_high_BND_next = Where (is_counter_ND, counted_BND, bounded_BND)
  open_BTD = Slice (z_high_BND_next, axis_1, end, axis_1)
  logits_BTV = MatMul (open_BTD, head_DV)
  answer_long_BT = ArgMax <axis = -1, keepdims = 0> (logits_BTV)
  answer_BT = Cast <to = 6> (answer_long_BT)
  counter_BND = Where (is_counter_ND, z_high_BND_next, zero)
  count_B = ReduceSum <keepdims = 0> (counter_BND, axes_12)
  sum_B = ReduceSum <keepdims = 0> (tokens_BT, axis_1)
  sevens_B = Div (sum_B, seven)
  full_B = Mul (sevens_B, seven)
  need_B = Sub (sum_B, full_B)
  need_float_B = Cast <to = 1> (need_B)
  past_B = Sub (count_B, need_float_B)
  halt_margin_B = Sub (past_B, half)
  q_halt_B = Sigmoid (halt_margin_B)
}
"""


def _constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    is_counter_ND = np.zeros((NUM_POSITIONS, WIDTH), np.bool_)
    is_counter_ND[0, 0] = True

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "embedding_VD": weights(VOCAB_SIZE, WIDTH),
        "mixing_NN": weights(NUM_POSITIONS, NUM_POSITIONS) / np.float32(4),
        "low_DD": weights(WIDTH, WIDTH),
        "high_DD": weights(WIDTH, WIDTH),
        "head_DV": weights(WIDTH, VOCAB_SIZE),
        "initial_ND": np.zeros((NUM_POSITIONS, WIDTH), np.float32),
        "zero": np.array(0.0, np.float32),
        "half": np.array(0.5, np.float32),
        "one": np.array(1.0, np.float32),
        "is_counter_ND": is_counter_ND,
        "seven": np.array(7, np.int32),
        "axis_1": np.array([1]),
        "axes_12": np.array([1, 2]),
        "end": np.array([NUM_POSITIONS]),
    }


def write_tiny_bundle(path: Path) -> Path:
    """Write the graph with a random puzzle table and its own golden traces."""
    rng = np.random.default_rng(11)
    table_PE = rng.normal(size=(NUM_PUZZLE_IDS, WIDTH)).astype(np.float32)
    graph = step_graph(TINY_STEP, _constants())
    write_step_bundle(path, graph, name="tiny", table_PE=table_PE, max_segments=MAX_SEGMENTS)
    traces = _traces(path / "step.fp32.onnx", table_PE, rng)
    np.savez(path / "golden.npz", allow_pickle=False, **traces)
    restate(path)
    return path


def _traces(graph: Path, table_PE: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    tokens_BT = rng.integers(0, VOCAB_SIZE, (NUM_TRACES, SEQ_LEN), dtype=np.int32)
    puzzle_ids_B = rng.integers(0, NUM_PUZZLE_IDS, NUM_TRACES, dtype=np.int32)
    engine = OnnxEngine(graph, num_slots=NUM_TRACES, num_threads=1, want_logits=True)
    for slot, puzzle_id in enumerate(puzzle_ids_B):
        engine.load(slot, tokens_BT[slot], table_PE[puzzle_id])
    steps = {name: [] for name in TRACES}
    for _ in range(MAX_SEGMENTS):
        output = engine.step(NUM_TRACES)
        for name in TRACES:
            array = getattr(output, name.replace("_S", "_"))
            steps[name].append(array.copy())
    traces = {name: np.stack(arrays) for name, arrays in steps.items()}
    traces["tokens_BT"] = tokens_BT
    traces["puzzle_ids_B"] = puzzle_ids_B
    traces["labels_BT"] = tokens_BT
    return traces
