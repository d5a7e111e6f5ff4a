"""The smallest real bundles: 4x4 Sudokus and 5x5 mazes, answered with the question itself.

Two more steps take much memory, or much time.
"""

from pathlib import Path

import numpy as np
from bundle_tools import step_graph, write_step_bundle

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
BROKEN_STEP = ECHO_STEP.replace(
    "logits_BTV = Mul (tokens_BT1, ones_V)",
    "flat = Reshape (tokens_BT1, wrong_shape)\n  logits_BTV = Mul (flat, ones_V)",
)
CONSTANTS = {
    "axis_1": np.array([1]),
    "axis_2": np.array([2]),
    "ones_V": np.ones(6, np.float32),
    "wrong_shape": np.array([3, 16, 1]),
}
TABLE_PE = np.zeros((1, 4), np.float32)


def write_echo_bundle(
    path: Path,
    *,
    name: str = "echo",
    max_segments: int = 3,
    step: str = ECHO_STEP,
    puzzle: str = "sudoku-4x4",
) -> Path:
    if puzzle == "maze-5x5":
        step = step.replace("B,16", "B,25").replace("B,17", "B,26")
    graph = step_graph(step, CONSTANTS)
    return write_step_bundle(
        path, graph, name=name, table_PE=TABLE_PE, max_segments=max_segments, puzzle=puzzle
    )


def _with_products(rest: str) -> str:
    """The echo with products of N x N numbers for each puzzle, N = 4096: 64 MiB."""
    sixteen_cells = ", ".join(["cells_BT1"] * 16)
    sixteen_many = ", ".join(["many_BM1"] * 16)
    return ECHO_STEP.replace(
        "q_halt_B = Identity (halt_margin_B)",
        f"""cells_BT1 = Unsqueeze (tokens_float_BT, axis_2)
  many_BM1 = Concat <axis = 1> ({sixteen_cells})
  more_BN1 = Concat <axis = 1> ({sixteen_many})
  more_B1N = Transpose <perm = [0, 2, 1]> (more_BN1)
  round_0 = MatMul (more_BN1, more_B1N)
  {rest}
  sum_BN = ReduceSum <keepdims = 0> (last_BNN, axis_2)
  q_halt_B = ReduceSum <keepdims = 0> (sum_BN, axis_1)""",
    )


GROWING_STEP = _with_products("last_BNN = Identity (round_0)")
"""A segment over four slots holds 256 MiB."""
ROUNDS = [f"round_{number} = MatMul (round_{number - 1}, round_0)" for number in range(1, 61)]
LONG_STEP = _with_products("\n  ".join([*ROUNDS, "last_BNN = Identity (round_60)"]))
"""A segment of one puzzle takes a minute of CPU time or more."""
