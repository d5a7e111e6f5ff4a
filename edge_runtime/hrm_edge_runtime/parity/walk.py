"""Two engines in lockstep over the same puzzles: read `walk` first. Golden traces can stand in for an engine.

Both engines keep the same puzzle in the same slot, and a slot whose puzzle is done takes the next one.
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
from hrm_edge_runtime.parity.measures import carry_measures, output_measures
from hrm_edge_runtime.parity.report import End, ParityReport
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions
from hrm_puzzles.puzzle import RIGHT


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """An engine under the name a report gives it, the rows of its own puzzle table, and the rule it halts by."""

    name: str
    engine: Engine
    puzzle_table: Float32
    policy: halting.HaltingPolicy


@dataclass(eq=False)
class _Row:
    """The question in one slot of both engines, and how each side that has halted ended with it."""

    asked: HeldOutPuzzle
    segment: int = 0
    carry_drift: float = 0.0
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
    """Run every question through both sides for `num_segments` at most, `to_the_end` also after both have halted.

    Refuses questions without any (ValueError).
    """
    sides = (reference, candidate)
    num_slots = min(side.engine.num_slots for side in sides)
    halts_SS = np.zeros((num_segments, num_segments), np.int64)
    report = ParityReport(
        reference=reference.name,
        candidate=candidate.name,
        puzzles=questions.source,
        halts_SS=halts_SS,
    )
    waiting, rows = iter(questions), list[_Row]()
    while report.num_puzzles < len(questions):
        for asked in itertools.islice(waiting, num_slots - len(rows)):
            for side in sides:
                side.engine.load(len(rows), asked.tokens_T, side.puzzle_table[asked.puzzle_id])
            rows.append(_Row(asked))
        _step(sides, rows, puzzle, report)
        for slot in reversed(range(len(rows))):
            ends, is_last = rows[slot].ends, rows[slot].segment == num_segments
            if is_last or (len(ends) == len(sides) and not to_the_end):
                report.add_end(ends[reference], ends[candidate])
                last = rows.pop()
                if slot < len(rows):
                    rows[slot] = last
                    for side in sides:
                        side.engine.move(len(rows), slot)
        progress(report.num_puzzles, len(questions))
    return report.finished()


def _step(
    sides: tuple[Side, Side], rows: list[_Row], puzzle: lane.Checker, report: ParityReport
) -> None:
    """One segment of both sides, measured."""
    for row in rows:
        row.segment += 1
    (theirs, theirs_stop_B), (ours, ours_stop_B) = (
        _step_side(side, rows, puzzle, report.num_segments) for side in sides
    )
    drift_B = np.array([row.carry_drift for row in rows])
    carries = carry_measures(sides[0].engine, sides[1].engine, drift_B)
    for row, drift in zip(rows, carries.get("carry_drift", drift_B).tolist(), strict=True):
        row.carry_drift = drift
    segment_B, question_B, puzzle_id_B = np.array(
        [(row.segment, row.asked.index, row.asked.puzzle_id) for row in rows]
    ).T
    measures = {**output_measures(theirs, ours, ours_stop_B != theirs_stop_B), **carries}
    report.add_segment(segment_B, question_B, puzzle_id_B, measures)


def _step_side(
    side: Side, rows: list[_Row], puzzle: lane.Checker, num_segments: int
) -> tuple[StepOutput, NDArray[np.bool_]]:
    """One segment of one side; also which rows would stop now."""
    tokens_BT = np.stack([row.asked.tokens_T for row in rows])
    labels_BT = np.stack([row.asked.labels_T for row in rows])
    segment_B = np.array([row.segment for row in rows], np.int32)
    limit = min(
        side.policy.max_segments, num_segments
    )  # a trace may be shorter than the rule lets a puzzle run
    policy = replace(side.policy, max_segments=limit)
    output = side.engine.step(len(rows))
    verdict_B = puzzle.check_BT(tokens_BT, output.answer_BT)
    stopping_B = halting.stops_B(output.halt_margin_B, segment_B, verdict_B, policy)
    is_exact_B = ((output.answer_BT == labels_BT) | (labels_BT < 0)).all(axis=1)
    for slot in np.flatnonzero(stopping_B).tolist():
        is_exact, is_proven = bool(is_exact_B[slot]), bool(verdict_B[slot] == RIGHT)
        rows[slot].ends.setdefault(
            side, End(rows[slot].segment, output.answer_BT[slot].copy(), is_exact, is_proven)
        )
    return output, stopping_B


def run_questions(
    engine: Engine,
    puzzle: lane.Checker,
    questions: Questions,
    puzzle_table: Float32,
    policy: halting.HaltingPolicy,
) -> Iterator[Attempt]:
    """Every question once through the lane that serves, numbered in their order; yields them as they end."""
    attempts = (
        Attempt(
            attempt_id=index,
            tokens_T=asked.tokens_T,
            puzzle_vector_E=puzzle_table[asked.puzzle_id],
            policy=policy,
            arrival_s=0.0,
        )
        for index, asked in enumerate(questions)
    )
    return lane.run_all(lane.Lane(engine, puzzle, queue_limit=engine.num_slots), attempts)


class GoldenEngine(Engine):
    """Plays traces back; a puzzle is known by its tokens and its puzzle id, which stands in for the puzzle vector."""

    def __init__(self, golden: Golden, num_slots: int) -> None:
        self.num_slots = num_slots
        self.seq_len = golden.tokens_BT.shape[1]
        self._golden = golden
        keys = zip(golden.tokens_BT, golden.puzzle_ids_B.tolist(), strict=True)
        self._row_of = {
            (tokens_T.tobytes(), puzzle_id): row for row, (tokens_T, puzzle_id) in enumerate(keys)
        }
        self._row_B = np.zeros(num_slots, np.intp)
        self._segment_B = np.zeros(num_slots, np.intp)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._row_B[slot] = self._row_of[tokens_T.tobytes(), int(puzzle_vector_E[0])]
        self._segment_B[slot] = 0

    def move(self, source: int, target: int) -> None:
        self._row_B[target], self._segment_B[target] = self._row_B[source], self._segment_B[source]

    def step(self, num_active: int) -> StepOutput:
        where = (self._segment_B[:num_active].copy(), self._row_B[:num_active])
        self._segment_B[:num_active] += 1
        return StepOutput(
            answer_BT=self._golden.answer_SBT[where],
            halt_margin_B=self._golden.halt_margin_SB[where],
            q_halt_B=self._golden.q_halt_SB[where],
            logits_BTV=self._golden.logits_SBTV[where],
        )


def golden_side(golden: Golden, num_slots: int, policy: halting.HaltingPolicy) -> Side:
    ids_as_vectors = np.arange(golden.puzzle_ids_B.max() + 1, dtype=np.float32)[:, None]
    name = "PyTorch (golden traces)"
    return Side(
        name=name,
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
    """Compare an engine with golden traces, which need not be in a bundle yet, through every segment they cover."""
    reference = golden_side(golden, engine.num_slots, policy)
    candidate = Side(name="engine", engine=engine, puzzle_table=puzzle_table, policy=policy)
    segments = len(golden.answer_SBT)
    return walk(
        reference,
        candidate,
        golden_questions(golden),
        puzzle,
        num_segments=segments,
        to_the_end=True,
    )
