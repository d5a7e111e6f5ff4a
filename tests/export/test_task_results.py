"""The tasks that a model answers right are those that a server with its bundle answers right."""

from typing import Any

import numpy as np
from arc_bundle import ARC_STEP, CONSTANTS
from step_bundle import step_graph

from hrm_calibration.attempts import TaskScores, task_scores
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_host.progress import stages_on
from hrm_puzzles import registry

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


def test_a_task_is_right_if_all_of_its_held_out_answers_are() -> None:
    tasks = {
        "wrong": task(WRONG),
        "half": task(RIGHT, WRONG),
        "right": task(RIGHT),
        "both": task(RIGHT, RIGHT_TOO),
        "no question": task(),
    }
    found = scores(tasks)
    assert found is not None
    assert found == TaskScores(num_tasks=4, num_right_at_once=2, right=["right", "both"])


def test_the_variants_of_a_task_vote() -> None:
    """A swap of colors does not commute with the graph, so these variants answer otherwise."""
    tasks = {"right": task(RIGHT)}
    swapped = "0213456789"
    others = (f"right_t{turn}_{swapped}" for turn in range(3))
    found = scores(tasks, *others)
    assert found is not None
    assert (found.num_right_at_once, found.right) == (1, [])
    turned = scores(tasks, *(f"right_t{turn}_0123456789" for turn in range(1, 4)))
    assert turned is not None
    assert turned.right == ["right"]


def test_without_questions_there_are_no_scores() -> None:
    assert scores({}) is None
    assert scores({"a": task()}) is None
