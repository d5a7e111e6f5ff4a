"""Which kind of further attempts pays with a model, measured on held-out puzzles that one plain attempt leaves."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.batching.task import Task
from hrm_edge_runtime.manifest import AttemptKind
from hrm_export.contents import Contents
from hrm_export.forms import Form
from hrm_host.progress import Stages

NUM_ATTEMPTS, NUM_PUZZLES = 4, 32
FIRST_GUESSING: dict[AttemptKind, int | None] = {"symmetries": None, "hypotheses": 1}


def proven_by(graph: Path, form: Form, contents: Contents, stages: Stages) -> dict[AttemptKind, int]:
    """How many of the puzzles left each kind proves; empty where cells have no symbols to try or nothing is left."""
    served = contents.served
    left_N = np.flatnonzero(~form.outcomes.proven_N)[:NUM_PUZZLES]
    if not (served.puzzle.proof_exists and served.puzzle.geometry.num_symbols > 1 and len(left_N)):
        return {}
    counts: dict[AttemptKind, int] = {}
    with closing(contents.engine(graph, 2 * NUM_ATTEMPTS, want_logits=True)) as engine:
        for kind, first in FIRST_GUESSING.items():
            lane = Attempts(
                engine, served.puzzle, served.puzzle_table, queue_limit=NUM_PUZZLES, max_attempts=NUM_ATTEMPTS
            )
            for asked in contents.held_out.at(left_N):
                task = Task(
                    task_id=asked.index,
                    tokens_T=asked.tokens_T,
                    policy=replace(form.policy, max_segments=form.rollout.num_segments),
                    arrival_s=0.0,
                    num_attempts=NUM_ATTEMPTS,
                    first_guessing=first,
                )
                lane.submit(task)
            counts[kind] = 0
            while lane.has_work:
                counts[kind] += sum(result.status == "proven" for result in lane.step()[0])
            stages.show("trying further attempts", len(counts), len(FIRST_GUESSING))
    return counts
