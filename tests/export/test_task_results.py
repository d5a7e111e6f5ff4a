"""The tasks that a model answers right are those that a server with its bundle answers right."""

from typing import Any

import numpy as np
from bundle_tools import step_graph

from hrm_calibration.attempts import TaskScores, task_scores
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_host.progress import stages_on
from hrm_puzzles import registry

# Shapes: B slots, T = 49 cells, N = 50, D = E = 4, V = 12.
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
SEGMENTS = 3  # the graph adds one to every color in each segment
RIGHT = {"input": [[1, 2]], "output": [[4, 5]]}
RIGHT_TOO = {"input": [[0], [9]], "output": [[3], [2]]}
WRONG = {"input": [[1, 2]], "output": [[4, 4]]}


def task(*tests: dict[str, Any]) -> dict[str, Any]:
    return {"train": [RIGHT], "test": list(tests)}


def scores(tasks: dict[str, Any], *variants: str) -> TaskScores | None:
    identifiers = ["<blank>", *tasks, *variants]
    served = ServedGraph(
        graph=step_graph(ARC_STEP, CONSTANTS),
        puzzle=registry.get("arc-7x7"),
        puzzle_table=np.zeros((len(identifiers), 4), np.float32),
        policy=HaltingPolicy(kind="fixed", max_segments=SEGMENTS),
    )
    with stages_on() as stages:
        return task_scores(served, tasks, identifiers, stages)


def test_a_task_is_right_if_all_of_its_held_out_answers_are():
    tasks = {
        "wrong": task(WRONG),
        "half": task(RIGHT, WRONG),
        "right": task(RIGHT),
        "both": task(RIGHT, RIGHT_TOO),
        "no question": task(),
    }
    found = scores(tasks)
    assert found == TaskScores(num_tasks=4, num_right_at_once=2, right=["right", "both"])


def test_the_variants_of_a_task_vote():
    """A swap of colors does not commute with the graph, so these variants answer otherwise."""
    tasks = {"right": task(RIGHT)}
    swapped = "0213456789"
    others = (f"right_t{turn}_{swapped}" for turn in range(3))
    found = scores(tasks, *others)
    assert (found.num_right_at_once, found.right) == (1, [])
    turned = scores(tasks, *(f"right_t{turn}_0123456789" for turn in range(1, 4)))
    assert turned.right == ["right"]


def test_without_questions_there_are_no_scores():
    assert scores({}) is None
    assert scores({"a": task()}) is None
