"""Two engines in lockstep over the same puzzles: read `walk` first. `replay` does so against a bundle's golden traces.

Both engines keep the same puzzle in the same slot, and a slot whose puzzle is done takes the next one.
Shapes: B slots, S segments, T tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy, columns_of, decide_B
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.bundle import Bundle, Golden
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.parity.measures import carry_measures, output_measures
from hrm_edge_runtime.parity.report import End, ParityReport
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.held_out import HeldOutPuzzle, Questions
from hrm_puzzles.puzzle import RIGHT

GOLDEN_NAME = "PyTorch (golden traces)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """An engine under the name a report gives it, the rows of its own puzzle table, and the rule it halts by."""

    name: str
    engine: Engine
    puzzle_table: Float32
    policy: HaltingPolicy


def walk(
    reference: Side,
    candidate: Side,
    questions: Questions,
    puzzle: Checker,
    *,
    num_segments: int,
    to_the_end: bool,
    progress: OnProgress = unheard,
) -> ParityReport:
    """Run every question through both sides for `num_segments` at most, `to_the_end` also after both have halted.

    Refuses questions without any (ValueError).
    """
    num_slots = min(reference.engine.num_slots, candidate.engine.num_slots)
    theirs, ours = (_Slots(side, puzzle, num_slots, num_segments) for side in (reference, candidate))
    halts_SS = np.zeros((num_segments, num_segments), np.int64)
    report = ParityReport(
        reference=reference.name, candidate=candidate.name, puzzles=questions.source, halts_SS=halts_SS
    )
    pair = _Pair(theirs, ours, report, to_the_end)
    waiting = iter(questions)
    while pair.fill(waiting):
        pair.step()
        pair.dismiss()
        progress(report.num_puzzles, len(questions))
    return report.finished()


class _Slots:
    """One side's slots: after which segment each halted (0: not yet), and what it had answered by then."""

    def __init__(self, side: Side, puzzle: Checker, num_slots: int, num_segments: int) -> None:
        self.side = side
        self._puzzle = puzzle
        limit = min(side.policy.max_segments, num_segments)  # a trace may be shorter than the rule lets a puzzle run
        self._policy = replace(side.policy, max_segments=limit)
        self.halted_at_B = np.zeros(num_slots, np.int32)
        self.is_exact_B = np.zeros(num_slots, np.bool_)
        self.is_proven_B = np.zeros(num_slots, np.bool_)

    def load(self, slot: int, asked: HeldOutPuzzle) -> None:
        self.side.engine.load(slot, asked.tokens_T, self.side.puzzle_table[asked.puzzle_id])
        self.halted_at_B[slot] = 0

    def move(self, source: int, target: int) -> None:
        self.side.engine.move(source, target)
        for rows in (self.halted_at_B, self.is_exact_B, self.is_proven_B):
            rows[target] = rows[source]

    def step(self, segment_B: Int32, tokens_BT: Int32, labels_BT: Int32) -> tuple[StepOutput, NDArray[np.bool_]]:
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

    def __init__(self, reference: _Slots, candidate: _Slots, report: ParityReport, to_the_end: bool) -> None:
        self._reference, self._candidate = reference, candidate
        self._report, self._to_the_end = report, to_the_end
        num_slots, seq_len = len(reference.halted_at_B), candidate.side.engine.seq_len
        self._num_active, self._num_slots = 0, num_slots
        self._tokens_BT = np.zeros((num_slots, seq_len), np.int32)
        self._labels_BT = np.zeros((num_slots, seq_len), np.int32)
        self._question_B = np.zeros(num_slots, np.int64)
        self._puzzle_id_B = np.zeros(num_slots, np.int64)
        self._segment_B = np.zeros(num_slots, np.int32)
        self._drift_B = np.zeros(num_slots, np.float64)

    def fill(self, waiting: Iterator[HeldOutPuzzle]) -> bool:
        """Load questions while there are free slots; False where nothing is left to do."""
        while self._num_active < self._num_slots and (asked := next(waiting, None)) is not None:
            slot = self._num_active
            for side in (self._reference, self._candidate):
                side.load(slot, asked)
            self._tokens_BT[slot], self._labels_BT[slot] = asked.tokens_T, asked.labels_T
            self._question_B[slot], self._puzzle_id_B[slot] = asked.index, asked.puzzle_id
            self._segment_B[slot], self._drift_B[slot] = 0, 0.0
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
        self._report.add_segment(self._segment_B[active], self._question_B[active], self._puzzle_id_B[active], measures)

    def dismiss(self) -> None:
        """Count the puzzles that are done and close the gaps they leave."""
        own = (self._tokens_BT, self._labels_BT, self._question_B, self._puzzle_id_B, self._segment_B, self._drift_B)
        for slot in reversed(range(self._num_active)):
            both_halted = self._reference.halted_at_B[slot] > 0 and self._candidate.halted_at_B[slot] > 0
            if self._segment_B[slot] < self._report.num_segments and (self._to_the_end or not both_halted):
                continue
            self._report.add_end(self._reference.end_of(slot), self._candidate.end_of(slot))
            self._num_active -= 1
            if slot < self._num_active:
                self._reference.move(self._num_active, slot)
                self._candidate.move(self._num_active, slot)
                for rows in own:
                    rows[slot] = rows[self._num_active]


class GoldenEngine:
    """Plays traces back; a puzzle is known by its tokens and its puzzle id, which stands in for the puzzle vector."""

    def __init__(self, golden: Golden, num_slots: int) -> None:
        self.num_slots = num_slots
        self.seq_len = golden.tokens_BT.shape[1]
        self._golden = golden
        keys = zip(golden.tokens_BT, golden.puzzle_ids_B.tolist(), strict=True)
        self._row_of = {(tokens_T.tobytes(), puzzle_id): row for row, (tokens_T, puzzle_id) in enumerate(keys)}
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

    def close(self) -> None:
        """Nothing to release."""


def golden_side(golden: Golden, num_slots: int, policy: HaltingPolicy) -> Side:
    """The traces as the reference of a comparison."""
    ids_as_vectors = np.arange(golden.puzzle_ids_B.max() + 1, dtype=np.float32)[:, None]
    return Side(name=GOLDEN_NAME, engine=GoldenEngine(golden, num_slots), puzzle_table=ids_as_vectors, policy=policy)


def golden_questions(golden: Golden) -> Questions:
    """The puzzles of the golden traces, in their order."""
    return Questions(
        tokens_NT=golden.tokens_BT,
        labels_NT=golden.labels_BT,
        puzzle_ids_N=golden.puzzle_ids_B,
        source="golden traces",
    )


def replay(bundle: Bundle, engine_factory: Callable[[int], Engine]) -> ParityReport:
    """Replay a bundle's golden traces; `engine_factory` makes an engine of that many slots that hands out logits."""
    golden, policy = bundle.golden(), bundle.manifest.halting_policy()
    with closing(engine_factory(len(golden.tokens_BT))) as engine:
        return compare(golden, engine, puzzle_table=bundle.puzzle_table, puzzle=bundle.puzzle, policy=policy)


def compare(
    golden: Golden, engine: Engine, *, puzzle_table: Float32, puzzle: Checker, policy: HaltingPolicy
) -> ParityReport:
    """Compare an engine with golden traces, which need not be in a bundle yet, through every segment they cover."""
    reference = golden_side(golden, engine.num_slots, policy)
    candidate = Side(name="engine", engine=engine, puzzle_table=puzzle_table, policy=policy)
    segments = len(golden.answer_SBT)
    return walk(reference, candidate, golden_questions(golden), puzzle, num_segments=segments, to_the_end=True)
