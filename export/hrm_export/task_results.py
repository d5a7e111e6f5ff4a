"""Find the ARC tasks that a model answers right. It solves their held-out questions as a server
does.

Shapes: T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hrm_calibration.rollouts import ServedGraph, answered
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.contract.manifest import TaskResults
from hrm_edge_runtime.engines.engine import Engine
from hrm_host.progress import OnProgress, Stages
from hrm_puzzles.puzzle import Grid

NUM_ATTEMPTS = 16
STAGE = "tasks"

Pairs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Question:
    """A held-out question of a task. `puzzle_id` is the row of the task itself, not of a
    variant."""

    name: str
    puzzle_id: int
    question: Grid
    answer: Grid


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """Tasks by the attempts that answer all of their held-out questions right."""

    num_tasks: int
    right_at_once: list[str]
    right: list[str]

    def in_order(self) -> list[str]:
        """The right tasks. Those that one attempt answers come first."""
        at_once = [name for name in self.right_at_once if name in self.right]
        others = [name for name in self.right if name not in at_once]
        return at_once + others

    def results(self, generated: Sequence[str]) -> TaskResults:
        """What the manifest holds; `generated` are tasks with generated examples."""
        return TaskResults(
            attempts=NUM_ATTEMPTS,
            num_tasks=self.num_tasks,
            right=self.in_order(),
            generated=list(generated),
        )

    def shares(self) -> dict[str, int | float]:
        """Entries of the manifest's provenance."""
        return {
            "held_out": self.num_tasks,
            "solved": round(len(self.right_at_once) / self.num_tasks, 4),
            "solved_16_attempts": round(len(self.right) / self.num_tasks, 4),
        }


def task_scores(
    served: ServedGraph,
    tasks: Mapping[str, Mapping[str, Pairs]],
    identifiers: Sequence[str],
    stages: Stages,
) -> TaskScores | None:
    """Ask every held-out question in one attempt and in many; None without such questions."""
    names = Identifiers(identifiers)
    questions = _questions(tasks, names)
    if not questions:
        return None
    ask = partial(_right, served, questions, names)
    with served.engine(served.graph, num_slots=NUM_ATTEMPTS) as engine:
        once = partial(stages.show, f"{STAGE}, once")
        right_at_once = ask(engine, num_attempts=1, progress=once)
        often = partial(stages.show, f"{STAGE}, {NUM_ATTEMPTS} times")
        right = ask(engine, num_attempts=NUM_ATTEMPTS, progress=often)
    num_tasks = len({question.name for question in questions})
    return TaskScores(num_tasks=num_tasks, right_at_once=right_at_once, right=right)


def _questions(
    tasks: Mapping[str, Mapping[str, Pairs]],
    names: Identifiers,
) -> list[_Question]:
    questions: list[_Question] = []
    for name, splits in tasks.items():
        row = names.row_of(name)
        assert row is not None, "the tasks of a bundle are rows of its table"
        for pair in splits["test"]:
            question = _Question(
                name=name,
                puzzle_id=row,
                question=np.array(pair["input"], np.int8),
                answer=np.array(pair["output"], np.int8),
            )
            questions.append(question)
    return questions


def _right(
    served: ServedGraph,
    questions: Sequence[_Question],
    names: Identifiers,
    engine: Engine,
    *,
    num_attempts: int,
    progress: OnProgress,
) -> list[str]:
    """The tasks without a wrong answer, in their order."""
    lane = TaskLane(
        engine,
        served.puzzle,
        served.puzzle_table,
        queue_limit=len(questions),
        max_attempts=num_attempts,
        identifiers=names,
    )
    tasks: list[Task] = []
    for number, asked in enumerate(questions):
        task = Task(
            task_id=number,
            tokens_T=served.puzzle.encode(asked.question),
            policy=served.policy,
            arrival_s=0.0,
            puzzle_id=asked.puzzle_id,
            num_attempts=num_attempts,
        )
        tasks.append(task)
    right = {asked.name: True for asked in questions}
    for result in answered(lane, tasks, progress):
        asked = questions[result.task_id]
        right[asked.name] &= _is_right(result, asked, served)
    return [name for name, is_right in right.items() if is_right]


def _is_right(result: Result, asked: _Question, served: ServedGraph) -> bool:
    if result.answer_T is None:
        return False
    return np.array_equal(served.puzzle.decode(result.answer_T), asked.answer)
