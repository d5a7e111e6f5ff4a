"""Run two engines in lockstep over the same puzzles; read `walk` first.

Both engines hold the same puzzle in the same slot. A slot takes the next puzzle as soon as its own
is done. `GoldenEngine` plays golden traces back, so traces can take the place of an engine.

Shapes: B slots, S segments, M measured rows of all segments, N puzzles, T tokens.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract import halting
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_host.progress import OnProgress, unheard
from hrm_parity.measures import (
    Column,
    Float64,
    Measure,
    carry_measures,
    column_of,
    output_measures,
)
from hrm_parity.outcomes import Outcomes
from hrm_parity.report import ParityReport
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions
from hrm_puzzles.puzzle import RIGHT, Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One engine of a comparison: its name in reports, its puzzle table and its halting rule.

    If it does not show its segments, only halts and final answers are compared.
    """

    name: str
    engine: Engine
    puzzle_table: Float32
    policy: halting.HaltingPolicy
    shows_segments: bool = True


class _End(NamedTuple):
    """How one side ended with one puzzle: its last segment, its answer, whether it was right."""

    halted_at: int
    answer_T: Int32
    is_exact: bool
    is_proven: bool


@dataclass(eq=False)
class _Row:
    """The question in one slot of both engines, and the end of each side that has halted."""

    asked: HeldOutPuzzle
    segment: int = 0
    ends: dict[Side, _End] = field(default_factory=dict[Side, _End])


def walk(
    reference: Side,
    candidate: Side,
    questions: Questions,
    puzzle: Puzzle,
    *,
    num_segments: int,
    to_the_end: bool,
    progress: OnProgress = unheard,
) -> ParityReport:
    """Run every question through both sides for at most `num_segments` segments.

    A question leaves its slot once both sides have halted, or with `to_the_end` after the last
    segment. Raises ValueError if there are no questions.
    """
    if not len(questions):
        raise ValueError("there is no puzzle to compare; give at least one.")
    pair = _Pair(_limited(reference, num_segments), _limited(candidate, num_segments), puzzle)
    waiting = iter(questions)
    while len(pair.ended) < len(questions):
        for asked in itertools.islice(waiting, pair.num_free):
            pair.load(asked)
        pair.step()
        for slot in reversed(range(len(pair.rows))):
            row = pair.rows[slot]
            has_ended = len(row.ends) == len(pair.sides) and not to_the_end
            if has_ended or row.segment == num_segments:
                pair.remove(slot)
        progress(len(pair.ended), len(questions))
    return pair.report(questions.source)


class _Pair:
    """Both engines, the questions in their slots, and what was measured so far."""

    def __init__(self, reference: Side, candidate: Side, puzzle: Puzzle) -> None:
        self.reference = reference
        self.candidate = candidate
        self.sides = (reference, candidate)
        self.puzzle = puzzle
        self.rows: list[_Row] = []
        self.measured: list[tuple[int, int, int]] = []
        self.measures: dict[Measure, list[Float64]] = {}
        self.ended: list[_Row] = []

    @property
    def num_free(self) -> int:
        num_slots = min(side.engine.num_slots for side in self.sides)
        return num_slots - len(self.rows)

    def load(self, asked: HeldOutPuzzle) -> None:
        slot = len(self.rows)
        for side in self.sides:
            vector_E = side.puzzle_table[asked.puzzle_id]
            side.engine.load(slot, asked.tokens_T, vector_E)
        self.rows.append(_Row(asked))

    def step(self) -> None:
        """Run one segment on both sides and measure how far they are apart."""
        for row in self.rows:
            row.segment += 1
            self.measured.append((row.segment, row.asked.index, row.asked.puzzle_id))
        theirs, theirs_stop_B = self._step_side(self.reference)
        ours, ours_stop_B = self._step_side(self.candidate)
        if not self.candidate.shows_segments:
            return
        measures = output_measures(theirs, ours, ours_stop_B != theirs_stop_B)
        measures |= carry_measures(self.reference.engine, self.candidate.engine, len(self.rows))
        for name, value_B in measures.items():
            self.measures.setdefault(name, []).append(value_B)

    def _step_side(self, side: Side) -> tuple[StepOutput, NDArray[np.bool_]]:
        """Run one segment on one side; also returns which rows would stop now."""
        rows = self.rows
        tokens_BT = np.stack([row.asked.tokens_T for row in rows])
        labels_BT = np.stack([row.asked.labels_T for row in rows])
        segment_B = np.array([row.segment for row in rows], np.int32)
        output = side.engine.step(len(rows))
        answer_BT = output.answer_BT
        verdict_B = self.puzzle.check_BT(tokens_BT, answer_BT)
        stopping_B = halting.stops_B(output.halt_margin_B, segment_B, verdict_B, side.policy)
        is_right_BT = (answer_BT == labels_BT) | (labels_BT < 0)
        is_exact_B = is_right_BT.all(axis=1)
        for slot in np.flatnonzero(stopping_B).tolist():
            end = _End(
                halted_at=rows[slot].segment,
                answer_T=answer_BT[slot].copy(),
                is_exact=bool(is_exact_B[slot]),
                is_proven=bool(verdict_B[slot] == RIGHT),
            )
            rows[slot].ends.setdefault(side, end)
        return output, stopping_B

    def remove(self, slot: int) -> None:
        """End the row in `slot`; the last row takes the free slot."""
        self.ended.append(self.rows[slot])
        last = self.rows.pop()
        if slot == len(self.rows):
            return
        self.rows[slot] = last
        for side in self.sides:
            side.engine.move(len(self.rows), slot)

    def report(self, puzzles: str) -> ParityReport:
        segment_M, question_M, puzzle_id_M = np.array(self.measured).T
        columns: dict[Measure, Column] = {}
        for name, values in self.measures.items():
            columns[name] = column_of(segment_M, np.concatenate(values))
        num_others = 0
        for row in self.ended:
            theirs_T, ours_T = (row.ends[side].answer_T for side in self.sides)
            num_others += not np.array_equal(theirs_T, ours_T)
        return ParityReport(
            reference=self.reference.name,
            candidate=self.candidate.name,
            puzzles=puzzles,
            num_running_S=np.bincount(segment_M)[1:],
            question_M=question_M,
            puzzle_id_M=puzzle_id_M,
            columns=columns,
            theirs=self._outcomes(self.reference),
            ours=self._outcomes(self.candidate),
            has_proofs=self.puzzle.proof_exists,
            num_different_final_answers=num_others,
        )

    def _outcomes(self, side: Side) -> Outcomes:
        ends = [row.ends[side] for row in self.ended]
        return Outcomes(
            exact_N=np.array([end.is_exact for end in ends]),
            proven_N=np.array([end.is_proven for end in ends]),
            segments_N=np.array([end.halted_at for end in ends]),
        )


def _limited(side: Side, num_segments: int) -> Side:
    """The side with its rule cut to `num_segments`; a trace may be shorter than the rule allows."""
    limit = min(side.policy.max_segments, num_segments)
    return replace(side, policy=replace(side.policy, max_segments=limit))


class GoldenEngine(Engine):
    """Plays golden traces back. It finds a trace by tokens and puzzle id.

    The puzzle id arrives as a puzzle vector of one number, see `golden_side`.
    """

    def __init__(self, golden: Golden, num_slots: int) -> None:
        self.num_slots = num_slots
        self.seq_len = golden.tokens_BT.shape[1]
        self._golden = golden
        self._row_of: dict[tuple[bytes, int], int] = {}
        for row, puzzle_id in enumerate(golden.puzzle_ids_B.tolist()):
            tokens = golden.tokens_BT[row].tobytes()
            self._row_of[tokens, puzzle_id] = row
        self._row_B = np.zeros(num_slots, np.intp)
        self._segment_B = np.zeros(num_slots, np.intp)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        puzzle_id = int(puzzle_vector_E[0])
        self._row_B[slot] = self._row_of[tokens_T.tobytes(), puzzle_id]
        self._segment_B[slot] = 0

    def move(self, source: int, target: int) -> None:
        self._row_B[target] = self._row_B[source]
        self._segment_B[target] = self._segment_B[source]

    def step(self, num_active: int) -> StepOutput:
        golden = self._golden
        index = (self._segment_B[:num_active].copy(), self._row_B[:num_active])
        self._segment_B[:num_active] += 1
        return StepOutput(
            answer_BT=golden.answer_SBT[index],
            halt_margin_B=golden.halt_margin_SB[index],
            q_halt_B=golden.q_halt_SB[index],
            logits_BTV=golden.logits_SBTV[index],
        )


def golden_side(golden: Golden, num_slots: int, policy: halting.HaltingPolicy) -> Side:
    num_ids = golden.puzzle_ids_B.max() + 1
    ids_as_vectors = np.arange(num_ids, dtype=np.float32)[:, None]
    return Side(
        name="PyTorch (golden traces)",
        engine=GoldenEngine(golden, num_slots),
        puzzle_table=ids_as_vectors,
        policy=policy,
    )


def golden_questions(golden: Golden) -> Questions:
    return Questions(
        tokens_NT=golden.tokens_BT,
        labels_NT=golden.labels_BT,
        puzzle_ids_N=golden.puzzle_ids_B,
        source="golden traces",
    )


def compare(
    golden: Golden,
    engine: Engine,
    *,
    puzzle_table: Float32,
    puzzle: Puzzle,
    policy: halting.HaltingPolicy,
) -> ParityReport:
    """Compare an engine with golden traces in every segment they cover.

    The traces need not be in a bundle yet.
    """
    reference = golden_side(golden, engine.num_slots, policy)
    candidate = Side(name="engine", engine=engine, puzzle_table=puzzle_table, policy=policy)
    return walk(
        reference,
        candidate,
        golden_questions(golden),
        puzzle,
        num_segments=len(golden.answer_SBT),
        to_the_end=True,
    )


def attempts_of(
    questions: Iterable[HeldOutPuzzle],
    puzzle_table_PE: Float32,
    policy: halting.HaltingPolicy,
) -> Iterator[Attempt]:
    """One attempt for each question, for a lane. Ids count from 0; `task_id` is the question's."""
    for number, asked in enumerate(questions):
        yield Attempt(
            attempt_id=number,
            tokens_T=asked.tokens_T,
            puzzle_vector_E=puzzle_table_PE[asked.puzzle_id],
            policy=policy,
            arrival_s=0.0,
            task_id=asked.index,
        )
