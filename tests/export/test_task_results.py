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
  z_high_BND_next = Identity (z_high_BND)
  z_low_BND_next = Identity (z_low_BND)
  color_BT = Sub (tokens_BT, two)
  later_BT = Add (color_BT, one)
  turned_BT = Mod (later_BT, ten)
  token_BT = Add (turned_BT, two)
  is_none_BT = Greater (two, tokens_BT)
  answer_BT = Where (is_none_BT, tokens_BT, token_BT)
  halt_margin_B = Cast <to = 1> (fresh_B)
  q_halt_B = Identity (halt_margin_B)
  logits_BTV = OneHot (answer_BT, num_classes, off_and_on)
}
"""
CONSTANTS = {
    "one": np.array(1, np.int32),
    "two": np.array(2, np.int32),
    "ten": np.array(10, np.int32),
    "num_classes": np.array(12, np.int32),
    "off_and_on": np.array([0, 1], np.float32),
}
RIGHT = {"input": [[1, 2]], "output": [[2, 3]]}  # the graph adds one to every color
RIGHT_TOO = {"input": [[0], [9]], "output": [[1], [0]]}
WRONG = {"input": [[1, 2]], "output": [[2, 2]]}


def task(*tests: dict[str, Any]) -> dict[str, Any]:
    return {"train": [RIGHT], "test": list(tests)}


def scores(tasks: dict[str, Any], *variants: str) -> TaskScores | None:
    identifiers = ["<blank>", *tasks, *variants]
    served = ServedGraph(
        graph=step_graph(ARC_STEP, CONSTANTS),
        puzzle=registry.get("arc-7x7"),
        puzzle_table=np.zeros((len(identifiers), 4), np.float32),
        policy=HaltingPolicy(kind="fixed", max_segments=1),
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
