"""A puzzle with ten symmetries, and an engine that knows the course of every question.

Tokens run to 99 and a symmetry adds tens, so the question 3 has the frames 3, 13, 23 ... The right
answer is the question plus 50, modulo 100. Shapes: B slots, T tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scripted_engine import Script, ScriptedEngine

from hrm_edge_runtime.batching.task import Result, SegmentEvent
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

SEQ_LEN = 3


def tokens(value: int) -> np.ndarray:
    return np.full(SEQ_LEN, value, np.int32)


@dataclass(frozen=True, kw_only=True)
class Shift:
    by: int

    def apply(self, tokens_BT: np.ndarray) -> np.ndarray:
        return (tokens_BT + self.by) % 100

    def invert(self, tokens_BT: np.ndarray) -> np.ndarray:
        return (tokens_BT - self.by) % 100


class Tens:
    """The puzzle; without `proof_exists` its check returns UNKNOWN."""

    vocab_size = 100

    def __init__(self, *, proof_exists: bool) -> None:
        self.proof_exists = proof_exists

    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        if not self.proof_exists:
            return np.full(len(inputs_BT), UNKNOWN, np.int8)
        right_BT = (inputs_BT + 50) % 100
        is_right_B = (answers_BT == right_BT).all(axis=1)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)

    def symmetry(self, rng: np.random.Generator) -> Shift:
        tens = int(rng.integers(10))
        return Shift(by=10 * tens)

    def decode(self, tokens_T: np.ndarray) -> np.ndarray:
        return tokens_T.astype(np.int8)


class Course(NamedTuple):
    """The model wants to halt from `segments` on; `answer` is in the frame of its question."""

    segments: int
    answer: int


class Seer(ScriptedEngine):
    """Plays a course for each first token, and records which questions each step computed."""

    def __init__(self, courses: dict[int, Course], *, num_slots: int) -> None:
        def play(tokens_T: np.ndarray) -> Script:
            course = courses[int(tokens_T[0])]
            return Script(answer_T=tokens(course.answer), segments=course.segments)

        super().__init__(num_slots=num_slots, seq_len=SEQ_LEN, play=play)
        self.loaded: list[int] = [0] * num_slots
        self.steps: list[list[int]] = []

    def load(self, slot: int, tokens_T: np.ndarray, puzzle_vector_E: np.ndarray) -> None:
        super().load(slot, tokens_T, puzzle_vector_E)
        self.loaded[slot] = int(tokens_T[0])

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.loaded[target] = self.loaded[source]

    def step(self, num_active: int) -> StepOutput:
        self.steps.append(self.loaded[:num_active])
        return super().step(num_active)


def run_out(lane: TaskLane) -> tuple[dict[int, Result], list[SegmentEvent]]:
    """Step a lane until it is idle; each task ends once."""
    results = {}
    events = []
    while lane.has_work:
        ended, seen = lane.step()
        for result in ended:
            assert result.task_id not in results, "a task ended twice"
            results[result.task_id] = result
        events += seen
    return results, events
