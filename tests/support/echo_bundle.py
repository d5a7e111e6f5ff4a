"""The smallest real bundle: a 4x4 Sudoku model whose answer is always its question.

So it solves exactly the boards that are complete already. Shapes: B slots, T = 16, N = 17, D = E = 4, V = 6.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.manifest import write_manifest

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


def write_echo_bundle(path: Path, *, name: str = "echo", max_segments: int = 3, step: str = ECHO_STEP) -> Path:
    path.mkdir()
    model = onnx.parser.parse_model(step)
    constants = {"axis_1": np.array([1]), "axis_2": np.array([2]), "ones_V": np.ones(6, np.float32)}
    constants |= {"wrong_shape": np.array([3, 16, 1])} if "wrong_shape" in step else {}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path / "step.fp32.onnx")
    np.save(path / "puzzle_table.npy", np.zeros((1, 4), np.float32))
    (path / "identifiers.json").write_text('["<blank>"]')
    write_manifest(
        path,
        name=name,
        puzzle="sudoku-4x4",
        seq_len=16,
        vocab_size=6,
        num_positions=17,
        hidden_size=4,
        puzzle_vector_size=4,
        num_puzzle_ids=1,
        max_segments=max_segments,
        halting={"policy": "verified", "threshold": 0.0},
        precisions={"fp32": "step.fp32.onnx"},
    )
    return path
