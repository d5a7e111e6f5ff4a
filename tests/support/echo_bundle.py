"""The smallest real bundles: 4x4 Sudokus and 5x5 mazes, answered with the question itself."""

from pathlib import Path

import numpy as np
from step_bundle import step_graph, write_step_bundle

ECHO_STEP = """
<ir_version: 10, opset_import: ["" : 20]>
echo (int32[B,16] tokens_BT, float[B,4] puzzle_vector_BE, bool[B] fresh_B,
      float[B,17,4] z_high_BND, float[B,17,4] z_low_BND)
  => (float[B,17,4] z_high_BND_next, float[B,17,4] z_low_BND_next, int32[B,16] answer_BT,
      float[B] halt_margin_B, float[B] q_halt_B, float[B,16,6] logits_BTV)
{
  z_high_BND_next = Identity (z_high_BND)
  z_low_BND_next = Identity (z_low_BND)
  answer_BT = Identity (tokens_BT)
  tokens_float_BT = Cast <to = 1> (tokens_BT)
  halt_margin_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)
  q_halt_B = Identity (halt_margin_B)
  tokens_BT1 = Unsqueeze (tokens_float_BT, axis_2)
  logits_BTV = Mul (tokens_BT1, ones_V)
}
"""
CONSTANTS = {"axis_1": np.array([1]), "axis_2": np.array([2]), "ones_V": np.ones(6, np.float32)}
TABLE_PE = np.zeros((1, 4), np.float32)


def write_echo_bundle(
    path: Path,
    *,
    name: str = "echo",
    max_segments: int = 3,
    step: str = ECHO_STEP,
    puzzle: str = "sudoku-4x4",
) -> Path:
    constants = dict(CONSTANTS)
    if "wrong_shape" in step:
        constants["wrong_shape"] = np.array([3, 16, 1])
    if puzzle == "maze-5x5":
        step = step.replace("B,16", "B,25").replace("B,17", "B,26")
    graph = step_graph(step, constants)
    return write_step_bundle(
        path, graph, name=name, table_PE=TABLE_PE, max_segments=max_segments, puzzle=puzzle
    )
