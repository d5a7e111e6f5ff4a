"""Scores a checkpoint or a bundle on held-out puzzles, under every halting policy.

Read `evaluate`. Shapes: N puzzles, T tokens, E puzzle-vector size.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_calibration.halting_curve import HaltingReport, report_on, roll_out
from hrm_edge_runtime.contract.bundle import IDENTIFIERS_NAME, Bundle
from hrm_edge_runtime.contract.manifest import MANIFEST_NAME
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.factory import choose, engine_for
from hrm_export.eval_options import EvaluationOptions
from hrm_host.machine import num_cores
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions, find_questions
from hrm_puzzles.puzzle import Puzzle, Voting

NUM_FRESH = 1000
"""Puzzles to generate if neither a data set nor a number is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """An opened model under evaluation; `precision` names what runs it."""

    name: str
    precision: str
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    max_segments: int
    engine: Engine


def subject_of(options: EvaluationOptions) -> Subject:
    """Open the checkpoint or the bundle that the options name. A bundle needs no PyTorch."""
    path = Path(options.source)
    if not path.exists() or (path / MANIFEST_NAME).is_file():
        return open_bundle(path, options)
    from hrm_export.checkpoint_subject import find_checkpoint, open_checkpoint

    found = find_checkpoint(path)
    if found is None:
        return open_bundle(path, options)
    return open_checkpoint(found, options)


def open_bundle(path: Path, options: EvaluationOptions) -> Subject:
    bundle = Bundle.open(find_bundle(str(path)))
    choice = choose(bundle, options.engine, num_slots=options.slots)
    engine = engine_for(
        bundle,
        engine=str(choice),
        num_slots=options.slots,
        num_threads=options.threads,
    )
    return Subject(
        name=bundle.manifest.name,
        precision=str(choice),
        puzzle=bundle.puzzle,
        puzzle_table=bundle.puzzle_table,
        max_segments=options.max_segments or bundle.manifest.max_segments,
        engine=engine,
    )


class LastAnswers:
    """Keeps the answers and q_halt values of the last segment, for `roll_out`."""

    def __init__(self, questions: Questions) -> None:
        self.answers_NT = np.zeros_like(questions.tokens_NT)
        self.q_halt_N = np.zeros(len(questions), np.float32)

    def keep(self, part: slice, output: StepOutput) -> None:
        self.answers_NT[part] = output.answer_BT
        self.q_halt_N[part] = output.q_halt_B


def evaluate(subject: Subject, options: EvaluationOptions, stages: Stages) -> HaltingReport:
    """Run every puzzle through all segments once and score each policy on that rollout."""
    questions = held_out(subject, options, stages)
    last = LastAnswers(questions)
    rollout = roll_out(
        subject.engine,
        subject.puzzle,
        subject.puzzle_table,
        questions,
        subject.max_segments,
        progress=partial(stages.show, "puzzles"),
        at_the_end=last.keep,
    )
    return report_on(
        rollout,
        model=subject.name,
        precision=subject.precision,
        max_loss=options.max_loss / 100,
        cells_N=right_cells_N(questions, last.answers_NT),
        pass_at=pass_at(subject.puzzle, Path(options.data), questions, last),
    )


def held_out(subject: Subject, options: EvaluationOptions, stages: Stages) -> Questions:
    count = options.puzzles
    if count is None:
        is_stored = Path(options.data).exists()
        count = sys.maxsize if is_stored else NUM_FRESH
    questions = find_questions(
        options.data,
        subject.puzzle,
        count=count,
        columns=options.columns,
        num_workers=num_cores(),
        progress=partial(stages.show, "making puzzles"),
    )
    questions.require_ids(len(subject.puzzle_table))
    return questions


def right_cells_N(questions: Questions, answers_NT: NDArray[np.int32]) -> NDArray[np.float64]:
    """The share of right cells among the open ones of each puzzle; 1 if none is open."""
    labels_NT = questions.labels_NT
    is_open_NT = (questions.tokens_NT != labels_NT) & (labels_NT >= 0)
    is_wrong_NT = is_open_NT & (answers_NT != labels_NT)
    num_open_N = np.maximum(1, is_open_NT.sum(1))
    return 1 - is_wrong_NT.sum(1) / num_open_N


def pass_at(
    puzzle: Puzzle,
    data: Path,
    questions: Questions,
    last: LastAnswers,
) -> Mapping[int, float]:
    """Tasks solved within k answers if the variants of a task vote; empty for other puzzles."""
    if not isinstance(puzzle, Voting) or not data.is_dir():
        return {}
    identifiers = json.loads((data / IDENTIFIERS_NAME).read_text(encoding="utf-8"))
    names = [identifiers[number] for number in questions.puzzle_ids_N.tolist()]
    tokens_NT = questions.tokens_NT
    labels_NT = questions.labels_NT
    return puzzle.pass_at(names, tokens_NT, labels_NT, last.answers_NT, last.q_halt_N)
