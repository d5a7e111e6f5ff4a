"""Golden traces as an engine: what PyTorch said, played back for the puzzles it was asked about.

Shapes: B slots, S segments, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.bundle import Bundle, Golden
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.parity.report import ParityReport, report_of
from hrm_edge_runtime.parity.walk import Course, Side, walk
from hrm_puzzles.data.held_out import Questions

GOLDEN_NAME = "PyTorch (golden traces)"


def golden_questions(golden: Golden) -> Questions:
    """The puzzles of the golden traces, in their order."""
    return Questions(
        tokens_NT=golden.tokens_BT,
        labels_NT=golden.labels_BT,
        puzzle_ids_N=golden.puzzle_ids_B,
        source="golden traces",
    )


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

    @property
    def puzzle_table(self) -> Float32:
        """One number for each id: the id."""
        return np.arange(self._golden.puzzle_ids_B.max() + 1, dtype=np.float32)[:, None]

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
        """Nothing is held."""


def golden_side(golden: Golden, num_slots: int, policy: HaltingPolicy) -> Side:
    """The traces as the reference of a comparison."""
    engine = GoldenEngine(golden, num_slots)
    return Side(name=GOLDEN_NAME, engine=engine, puzzle_table=engine.puzzle_table, policy=policy)


def replay(bundle: Bundle, engine_factory: Callable[[int], Engine]) -> ParityReport:
    """Replay a bundle's golden traces; `engine_factory` makes an engine of that many slots that hands out logits."""
    golden = bundle.golden()
    engine = engine_factory(len(golden.tokens_BT))
    try:
        policy = bundle.manifest.halting_policy()
        return compare(golden, engine, puzzle_table=bundle.puzzle_table, puzzle=bundle.puzzle, policy=policy)
    finally:
        engine.close()


def compare(
    golden: Golden, engine: Engine, *, puzzle_table: Float32, puzzle: Checker, policy: HaltingPolicy
) -> ParityReport:
    """Compare an engine with golden traces that need not stand in a bundle yet, through every segment they cover."""
    questions = golden_questions(golden)
    reference = golden_side(golden, engine.num_slots, policy)
    candidate = Side(name="engine", engine=engine, puzzle_table=puzzle_table, policy=policy)
    course = Course(num_segments=len(golden.answer_SBT), to_the_end=True)
    tally = walk(reference, candidate, questions, puzzle, course)
    return report_of(
        tally, reference=reference.name, candidate=candidate.name, puzzles=questions.source, proof_exists=True
    )
