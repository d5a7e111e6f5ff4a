"""Ask puzzles in several attempts, as a server does.

Finds which kind of further attempt proves more puzzles, and which ARC tasks a model answers right.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.contract.manifest import AttemptKind
from hrm_edge_runtime.engines.engine import Engine
from hrm_host.progress import OnProgress, Stages
from hrm_parity.outcomes import Outcomes
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Grid

NUM_TRIED_ATTEMPTS = 4
NUM_UNPROVEN = 32
"""Unproven puzzles that each kind of attempt tries."""
GUESSES: dict[AttemptKind, bool] = {"symmetries": False, "hypotheses": True}
"""Whether attempts guess, by kind of attempt."""
NUM_ATTEMPTS = 16
"""Attempts at each question of a task."""


def answered(
    engine: Engine,
    served: ServedGraph,
    tasks: Sequence[Task],
    progress: OnProgress,
    identifiers: Identifiers | None = None,
) -> Iterator[Result]:
    """Ask all tasks at once and yield the results as they come."""
    lane = TaskLane(
        engine,
        served.puzzle,
        served.puzzle_table,
        queue_limit=len(tasks),
        max_attempts=tasks[0].num_attempts,
        identifiers=identifiers,
    )
    for task in tasks:
        lane.submit(task)
    num_done = 0
    while lane.has_work:
        results, _ = lane.step()
        yield from results
        num_done += len(results)
        progress(num_done, len(tasks))


def proven_by(
    served: ServedGraph,
    held_out: Questions,
    outcomes: Outcomes,
    stages: Stages,
) -> dict[AttemptKind, int]:
    """How many unproven puzzles each kind of attempt proves.

    Empty if answers cannot be proven, if cells have no symbols to try, or if all are proven.
    """
    unproven_N = np.flatnonzero(~outcomes.proven_N)[:NUM_UNPROVEN]
    has_symbols = served.puzzle.proof_exists and served.puzzle.geometry.num_symbols > 1
    if not has_symbols or not len(unproven_N):
        return {}
    counts: dict[AttemptKind, int] = {}
    num_slots = 2 * NUM_TRIED_ATTEMPTS
    with served.engine(served.graph, num_slots=num_slots, want_logits=True) as engine:
        for kind, guesses in GUESSES.items():
            tasks: list[Task] = []
            for asked in held_out.at(unproven_N):
                task = Task(
                    task_id=asked.index,
                    tokens_T=asked.tokens_T,
                    policy=served.policy,
                    arrival_s=0.0,
                    num_attempts=NUM_TRIED_ATTEMPTS,
                    guesses=guesses,
                )
                tasks.append(task)
            show = partial(stages.show, f"trying {kind}")
            results = answered(engine, served, tasks, show)
            counts[kind] = sum(result.status == "proven" for result in results)
    return counts


class TaskScores(NamedTuple):
    """How many tasks there are, and which are right: all of their held-out questions.

    `right` by votes of `NUM_ATTEMPTS`; those come first that one attempt answers too.
    """

    num_tasks: int
    num_right_at_once: int
    right: list[str]


def task_scores(
    served: ServedGraph,
    tasks: Mapping[str, Any],
    identifiers: Sequence[str],
    stages: Stages,
) -> TaskScores | None:
    """Ask every held-out question in one attempt and in many; None without such questions.

    `tasks` holds pairs of input and output by task, then by split.
    """
    names = Identifiers(identifiers)
    questions, answers = _questions(served, tasks, names)
    if not questions:
        return None
    right: dict[int, list[str]] = {}
    task_names = dict.fromkeys(name for name, _ in answers)
    with served.engine(served.graph, num_slots=NUM_ATTEMPTS) as engine:
        for num_attempts in (1, NUM_ATTEMPTS):
            asked = [one._replace(num_attempts=num_attempts) for one in questions]
            show = partial(stages.show, f"tasks, attempts: {num_attempts}")
            is_right = dict.fromkeys(task_names, True)
            for result in answered(engine, served, asked, show, names):
                name, answer = answers[result.task_id]
                found_T = result.answer_T
                is_equal = found_T is not None and np.array_equal(
                    served.puzzle.decode(found_T), answer
                )
                is_right[name] &= is_equal
            right[num_attempts] = [name for name in is_right if is_right[name]]
    return TaskScores(
        num_tasks=len(task_names),
        num_right_at_once=len(right[1]),
        right=sorted(right[NUM_ATTEMPTS], key=lambda name: name not in right[1]),
    )


def _questions(
    served: ServedGraph,
    tasks: Mapping[str, Any],
    names: Identifiers,
) -> tuple[list[Task], list[tuple[str, Grid]]]:
    """The held-out questions for a lane, and for each the name of its ARC task and its answer."""
    questions: list[Task] = []
    answers: list[tuple[str, Grid]] = []
    for name, splits in tasks.items():
        row = names.row_of(name)
        assert row is not None, "the tasks of a bundle are rows of its table"
        for pair in splits["test"]:
            question = np.array(pair["input"], np.int8)
            task = Task(
                task_id=len(questions),
                tokens_T=served.puzzle.encode(question),
                policy=served.policy,
                arrival_s=0.0,
                puzzle_id=row,
            )
            questions.append(task)
            answers.append((name, np.array(pair["output"], np.int8)))
    return questions, answers
