"""Run two engines in lockstep over the same puzzles; read `walk` first.

Both engines hold the same puzzle in the same slot. A slot takes the next puzzle as soon as its own
is done. `GoldenEngine` plays golden traces back, so traces can take the place of an engine.

Shapes: B slots, S segments, T tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching import lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract import halting
from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_host.progress import OnProgress, unheard
from hrm_parity.measures import carry_measures, output_measures
from hrm_parity.report import End, ParityReport
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions
from hrm_puzzles.puzzle import RIGHT


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


@dataclass(eq=False)
class _Row:
    """The question in one slot of both engines, and the end of each side that has halted."""

    asked: HeldOutPuzzle
    segment: int = 0
    ends: dict[Side, End] = field(default_factory=dict[Side, End])


def walk(
    reference: Side,
    candidate: Side,
    questions: Questions,
    puzzle: lane.Checker,
    *,
    num_segments: int,
    to_the_end: bool,
    progress: OnProgress = unheard,
) -> ParityReport:
    """Run every question through both sides for at most `num_segments` segments.

    A question leaves its slot once both sides have halted, or with `to_the_end` after the last
    segment. Raises ValueError if there are no questions.
    """
    report = ParityReport(
        reference=reference.name,
        candidate=candidate.name,
        puzzles=questions.source,
        halts_SS=np.zeros((num_segments, num_segments), np.int64),
    )
    pair = _Pair(reference, candidate, puzzle, report)
    waiting = iter(questions)
    while report.num_puzzles < len(questions):
        for asked in itertools.islice(waiting, pair.num_free):
            pair.load(asked)
        pair.step()
        for slot in reversed(range(len(pair.rows))):
            if pair.is_done(slot, to_the_end=to_the_end):
                pair.remove(slot)
        progress(report.num_puzzles, len(questions))
    return report.finished()


class _Pair:
    """Both engines, the questions in their slots, and the report that collects the measures."""

    def __init__(
        self,
        reference: Side,
        candidate: Side,
        puzzle: lane.Checker,
        report: ParityReport,
    ) -> None:
        self.reference = _limited(reference, report.num_segments)
        self.candidate = _limited(candidate, report.num_segments)
        self.sides = (self.reference, self.candidate)
        self.puzzle = puzzle
        self.report = report
        self.rows: list[_Row] = []

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
        theirs, theirs_stop_B = self._step_side(self.reference)
        ours, ours_stop_B = self._step_side(self.candidate)
        if not self.candidate.shows_segments:
            return
        measures = output_measures(theirs, ours, ours_stop_B != theirs_stop_B)
        carries = carry_measures(self.reference.engine, self.candidate.engine, len(self.rows))
        measures.update(carries)
        segment_B = np.array([row.segment for row in self.rows])
        question_B = np.array([row.asked.index for row in self.rows])
        puzzle_id_B = np.array([row.asked.puzzle_id for row in self.rows])
        self.report.add_segment(segment_B, question_B, puzzle_id_B, measures)

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
            end = End(
                halted_at=rows[slot].segment,
                answer_T=answer_BT[slot].copy(),
                is_exact=bool(is_exact_B[slot]),
                is_proven=bool(verdict_B[slot] == RIGHT),
            )
            rows[slot].ends.setdefault(side, end)
        return output, stopping_B

    def is_done(self, slot: int, *, to_the_end: bool) -> bool:
        row = self.rows[slot]
        if row.segment == self.report.num_segments:
            return True
        return len(row.ends) == len(self.sides) and not to_the_end

    def remove(self, slot: int) -> None:
        """Report the end of the row in `slot`; the last row takes the free slot."""
        ends = self.rows[slot].ends
        self.report.add_end(ends[self.reference], ends[self.candidate])
        last = self.rows.pop()
        if slot == len(self.rows):
            return
        self.rows[slot] = last
        for side in self.sides:
            side.engine.move(len(self.rows), slot)


def _limited(side: Side, num_segments: int) -> Side:
    """The side with its rule cut to `num_segments`; a trace may be shorter than the rule allows."""
    limit = min(side.policy.max_segments, num_segments)
    return replace(side, policy=replace(side.policy, max_segments=limit))


def run_questions(
    engine: Engine,
    puzzle: lane.Checker,
    questions: Questions,
    puzzle_table: Float32,
    policy: halting.HaltingPolicy,
) -> Iterator[Attempt]:
    """Run every question once through the serving lane; yield each attempt as it ends.

    The id of an attempt is the number of its question.
    """

    def attempts() -> Iterator[Attempt]:
        for index, asked in enumerate(questions):
            yield Attempt(
                attempt_id=index,
                tokens_T=asked.tokens_T,
                puzzle_vector_E=puzzle_table[asked.puzzle_id],
                policy=policy,
                arrival_s=0.0,
            )

    serving = lane.Lane(engine, puzzle, queue_limit=engine.num_slots)
    return lane.run_all(serving, attempts())


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
    puzzle: lane.Checker,
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
