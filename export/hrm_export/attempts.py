"""Measures which kind of further attempt proves more puzzles that the first left unproven."""

from dataclasses import replace
from functools import partial

import numpy as np

from hrm_calibration.rollouts import ServedGraph, answered
from hrm_edge_runtime.batching.task import Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.manifest import AttemptKind
from hrm_edge_runtime.engines.engine import Engine
from hrm_export.forms import Measured
from hrm_host.progress import OnProgress, Stages
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions

NUM_ATTEMPTS = 4
NUM_PUZZLES = 32
GUESSES: dict[AttemptKind, bool] = {"symmetries": False, "hypotheses": True}
"""Whether attempts guess, by kind of attempt."""


def proven_by(
    measured: Measured,
    served: ServedGraph,
    held_out: Questions,
    stages: Stages,
) -> dict[AttemptKind, int]:
    """How many unproven puzzles each kind of attempt proves.

    Empty if answers cannot be proven, if cells have no symbols to try, or if all are proven.
    """
    unproven_N = np.flatnonzero(~measured.outcomes.proven_N)[:NUM_PUZZLES]
    has_symbols = served.puzzle.proof_exists and served.puzzle.geometry.num_symbols > 1
    if not has_symbols or not len(unproven_N):
        return {}
    questions = held_out.at(unproven_N)
    policy = replace(measured.policy, max_segments=measured.rollout.num_segments)
    tried = replace(served, policy=policy)
    counts: dict[AttemptKind, int] = {}
    graph = measured.graphs.portable
    with served.engine(graph, num_slots=2 * NUM_ATTEMPTS, want_logits=True) as engine:
        for kind, guesses in GUESSES.items():
            show = partial(stages.show, f"trying {kind}")
            counts[kind] = num_proven(engine, tried, questions, guesses, show)
    return counts


def num_proven(
    engine: Engine,
    served: ServedGraph,
    questions: Questions,
    guesses: bool,
    progress: OnProgress,
) -> int:
    lane = TaskLane(
        engine,
        served.puzzle,
        served.puzzle_table,
        queue_limit=NUM_PUZZLES,
        max_attempts=NUM_ATTEMPTS,
    )
    tasks = [task_of(asked, served, guesses) for asked in questions]
    results = answered(lane, tasks, progress)
    return sum(result.status == "proven" for result in results)


def task_of(asked: HeldOutPuzzle, served: ServedGraph, guesses: bool) -> Task:
    return Task(
        task_id=asked.index,
        tokens_T=asked.tokens_T,
        policy=served.policy,
        arrival_s=0.0,
        num_attempts=NUM_ATTEMPTS,
        guesses=guesses,
    )
