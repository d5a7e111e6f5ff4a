"""Two engines in lockstep over the same puzzles: read `walk` first.

Both engines keep the same puzzle in the same slot. A slot whose puzzle is done takes the next one, so that every step
has all slots at work and nothing is kept of a puzzle but its end.
Shapes: B slots, T tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy, columns_of, decide_B
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.engines.engine import Engine, Float32, StepOutput
from hrm_edge_runtime.parity.measures import carry_measures, output_measures
from hrm_edge_runtime.parity.tally import End, Tally
from hrm_puzzles.data.held_out import Question
from hrm_puzzles.puzzle import RIGHT


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """An engine under the name a report gives it, the rows of its own puzzle table, and the rule it halts by."""

    name: str
    engine: Engine
    puzzle_table: Float32
    policy: HaltingPolicy


@dataclass(frozen=True, kw_only=True)
class Course:
    """How far to go: `num_segments` at most; `to_the_end` also after both sides have halted."""

    num_segments: int
    to_the_end: bool


def walk(
    reference: Side,
    candidate: Side,
    questions: Iterable[Question],
    puzzle: Checker,
    course: Course,
    *,
    progress: Callable[[int], object] | None = None,
) -> Tally:
    """Runs every question through both sides; `progress` hears how many are done."""
    pair = _Pair(reference, candidate, puzzle, course)
    waiting = iter(questions)
    while pair.fill(waiting):
        pair.step()
        pair.dismiss()
        if progress is not None:
            progress(pair.tally.num_puzzles)
    return pair.tally


class _Seated:
    """One side's slots: after which segment each halted (0: not yet), and what it had answered by then."""

    def __init__(self, side: Side, puzzle: Checker, num_slots: int, num_segments: int) -> None:
        self.side = side
        self._puzzle = puzzle
        limit = min(side.policy.max_segments, num_segments)  # a trace may be shorter than the rule lets a puzzle run
        self._policy = replace(side.policy, max_segments=limit)
        self.halted_at_B = np.zeros(num_slots, np.int32)
        self.is_exact_B = np.zeros(num_slots, np.bool_)
        self.is_proven_B = np.zeros(num_slots, np.bool_)

    def load(self, slot: int, asked: Question) -> None:
        self.side.engine.load(slot, asked.tokens_T, self.side.puzzle_table[asked.puzzle_id])
        self.halted_at_B[slot] = 0

    def move(self, source: int, target: int) -> None:
        self.side.engine.move(source, target)
        for rows in (self.halted_at_B, self.is_exact_B, self.is_proven_B):
            rows[target] = rows[source]

    def step(
        self, segment_B: NDArray[np.int32], tokens_BT: NDArray[np.int32], labels_BT: NDArray[np.int32]
    ) -> tuple[StepOutput, NDArray[np.bool_]]:
        """One segment; also which rows would stop now."""
        num_active = len(segment_B)
        output = self.side.engine.step(num_active)
        verdict_B = self._puzzle.check_BT(tokens_BT, output.answer_BT)
        stops_B = decide_B(output.halt_margin_B, segment_B, verdict_B, columns_of(self._policy, num_active)) > 0
        halts_now_B = stops_B & (self.halted_at_B[:num_active] == 0)
        is_exact_B = ((output.answer_BT == labels_BT) | (labels_BT < 0)).all(axis=1)
        self.is_exact_B[:num_active][halts_now_B] = is_exact_B[halts_now_B]
        self.is_proven_B[:num_active][halts_now_B] = verdict_B[halts_now_B] == RIGHT
        self.halted_at_B[:num_active][halts_now_B] = segment_B[halts_now_B]
        return output, stops_B

    def end_of(self, slot: int) -> End:
        return End(int(self.halted_at_B[slot]), bool(self.is_exact_B[slot]), bool(self.is_proven_B[slot]))


class _Pair:
    """Both sides with the questions they have in common; the active slots are a dense prefix."""

    def __init__(self, reference: Side, candidate: Side, puzzle: Checker, course: Course) -> None:
        num_slots = min(reference.engine.num_slots, candidate.engine.num_slots)
        seq_len = candidate.engine.seq_len
        self.tally = Tally(course.num_segments)
        self._course = course
        self._reference, self._candidate = (
            _Seated(side, puzzle, num_slots, course.num_segments) for side in (reference, candidate)
        )
        self._num_active, self._num_slots = 0, num_slots
        self._tokens_BT = np.zeros((num_slots, seq_len), np.int32)
        self._labels_BT = np.zeros((num_slots, seq_len), np.int32)
        self._question_B = np.zeros(num_slots, np.int64)
        self._puzzle_id_B = np.zeros(num_slots, np.int64)
        self._segment_B = np.zeros(num_slots, np.int32)
        self._drift_B = np.zeros(num_slots, np.float64)

    def fill(self, waiting: Iterator[Question]) -> bool:
        """Seats questions while there are free slots; False where nothing is left to do."""
        while self._num_active < self._num_slots and (asked := next(waiting, None)) is not None:
            self._seat(self._num_active, asked)
            self._num_active += 1
        return self._num_active > 0

    def step(self) -> None:
        """One segment of both sides, measured."""
        active = slice(0, self._num_active)
        self._segment_B[active] += 1
        asked = (self._segment_B[active], self._tokens_BT[active], self._labels_BT[active])
        theirs, theirs_stop_B = self._reference.step(*asked)
        ours, ours_stop_B = self._candidate.step(*asked)
        engines = (self._reference.side.engine, self._candidate.side.engine)
        carries = carry_measures(*engines, self._drift_B[active])
        self._drift_B[active] = carries.get("carry_drift", 0.0)
        measures = {**output_measures(theirs, ours, ours_stop_B != theirs_stop_B), **carries}
        self.tally.take(self._segment_B[active], self._question_B[active], self._puzzle_id_B[active], measures)

    def dismiss(self) -> None:
        """Counts the puzzles that are done and closes the gaps they leave."""
        for slot in reversed(range(self._num_active)):
            if self._is_done(slot):
                self.tally.finish(self._reference.end_of(slot), self._candidate.end_of(slot))
                self._num_active -= 1
                if slot < self._num_active:
                    self._move(self._num_active, slot)

    def _is_done(self, slot: int) -> bool:
        both_halted = self._reference.halted_at_B[slot] > 0 and self._candidate.halted_at_B[slot] > 0
        is_last = self._segment_B[slot] >= self._course.num_segments
        return bool(is_last or (both_halted and not self._course.to_the_end))

    def _seat(self, slot: int, asked: Question) -> None:
        for seated in (self._reference, self._candidate):
            seated.load(slot, asked)
        self._tokens_BT[slot], self._labels_BT[slot] = asked.tokens_T, asked.labels_T
        self._question_B[slot], self._puzzle_id_B[slot] = asked.index, asked.puzzle_id
        self._segment_B[slot], self._drift_B[slot] = 0, 0.0

    def _move(self, source: int, target: int) -> None:
        for seated in (self._reference, self._candidate):
            seated.move(source, target)
        for rows in (self._tokens_BT, self._labels_BT, self._question_B, self._puzzle_id_B):
            rows[target] = rows[source]
        for rows in (self._segment_B, self._drift_B):
            rows[target] = rows[source]
