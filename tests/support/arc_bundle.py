"""A small ARC bundle for the page; its step graph shifts every color by one in each segment.

It has learned nothing. Its answer changes, its margin rises, and it wants to halt from the fourth
segment on. Shapes: B slots, T = 49 cells, N = 50, D = E = 4, V = 12.
"""

from pathlib import Path

import numpy as np
from step_bundle import step_graph, write_step_bundle

TASKS = ("shift-colors", "shift-again")
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
  color_BT = Sub (tokens_BT, two)
  later_BT = Add (color_BT, count_B1)
  tens_BT = Div (later_BT, ten)
  full_BT = Mul (tens_BT, ten)
  turned_BT = Sub (later_BT, full_BT)
  token_BT = Add (turned_BT, two)
  is_none_BT = Greater (two, tokens_BT)
  is_color_BT = Not (is_none_BT)
  answer_BT = Where (is_color_BT, token_BT, tokens_BT)
  halt_margin_B = Sub (count_B, content)
  q_halt_B = Identity (halt_margin_B)
  answer_BT1 = Unsqueeze (answer_BT, axis_2)
  is_above_BTV = Greater (answer_BT1, classes_V)
  is_below_BTV = Greater (classes_V, answer_BT1)
  is_at_most_BTV = Not (is_above_BTV)
  is_at_least_BTV = Not (is_below_BTV)
  is_answer_BTV = And (is_at_most_BTV, is_at_least_BTV)
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
    table_PE = np.zeros((1 + len(TASKS), 4), np.float32)
    graph = step_graph(ARC_STEP, CONSTANTS)
    return write_step_bundle(
        path,
        graph,
        name="arc-colors",
        table_PE=table_PE,
        max_segments=8,
        puzzle="arc-7x7",
        policy="learned",
        tasks=TASKS,
    )
