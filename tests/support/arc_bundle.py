"""A small ARC bundle for the page: a step graph whose colours move on by one each segment, content from the fourth on.

It learned nothing; it gives an answer that changes, a margin that rises and a halt of its own.
Shapes: B slots, T = 49 cells, N = 50, D = E = 4, V = 12.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from hrm_edge_runtime.manifest import write_manifest

TASKS = ("shift-colours", "shift-again")

ARC_STEP = """
<ir_version: 10, opset_import: ["" : 20]>
arc (int32[B,49] tokens_BT, float[B,4] puzzle_vector_BE, bool[B] fresh_B,
     float[B,50,4] z_high_BND, float[B,50,4] z_low_BND)
  => (float[B,50,4] z_high_BND_next, float[B,50,4] z_low_BND_next, int32[B,49] answer_BT,
      float[B] halt_margin_B, float[B] q_halt_B, float[B,49,12] logits_BTV)
{
  fresh_B11 = Unsqueeze (fresh_B, axes_12)
  high_BND = Where (fresh_B11, zero, z_high_BND)
  z_high_BND_next = Add (high_BND, one)
  z_low_BND_next = Identity (z_low_BND)
  count_B = ReduceMean <keepdims = 0> (z_high_BND_next, axes_12)
  count_int_B = Cast <to = 6> (count_B)
  count_B1 = Unsqueeze (count_int_B, axis_1)
  colour_BT = Sub (tokens_BT, two)
  later_BT = Add (colour_BT, count_B1)
  turned_BT = Mod (later_BT, ten)
  token_BT = Add (turned_BT, two)
  is_colour_BT = GreaterOrEqual (tokens_BT, two)
  answer_BT = Where (is_colour_BT, token_BT, tokens_BT)
  halt_margin_B = Sub (count_B, content)
  q_halt_B = Identity (halt_margin_B)
  answer_BT1 = Unsqueeze (answer_BT, axis_2)
  is_answer_BTV = Equal (answer_BT1, classes_V)
  logits_BTV = Cast <to = 1> (is_answer_BTV)
}
"""

CONSTANTS = {
    "axis_1": np.array([1]),
    "axis_2": np.array([2]),
    "axes_12": np.array([1, 2]),
    "zero": np.array(0.0, np.float32),
    "one": np.array(1.0, np.float32),
    "content": np.array(3.5, np.float32),
    "two": np.array(2, np.int32),
    "ten": np.array(10, np.int32),
    "classes_V": np.arange(12, dtype=np.int32),
}


def write_arc_bundle(path: Path) -> Path:
    path.mkdir()
    model = onnx.parser.parse_model(ARC_STEP)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path / "step.fp32.onnx")
    np.save(path / "puzzle_table.npy", np.zeros((1 + len(TASKS), 4), np.float32))
    (path / "identifiers.json").write_text(json.dumps(["<blank>", *TASKS]))
    write_manifest(
        path,
        name="arc-colours",
        puzzle="arc-7x7",
        seq_len=49,
        vocab_size=12,
        num_positions=50,
        hidden_size=4,
        puzzle_vector_size=4,
        num_puzzle_ids=1 + len(TASKS),
        max_segments=8,
        halting={"policy": "learned", "threshold": 0.0},
        precisions={"fp32": "step.fp32.onnx"},
    )
    return path
