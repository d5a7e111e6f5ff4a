"""Does an engine still say what PyTorch said? Golden traces replayed segment by segment, with numpy alone.

Shapes: B puzzles, S segments, T tokens, V vocabulary. Every puzzle runs all S segments, so a difference shows where
it begins; the halting rule is applied to both traces afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy, columns_of, decide_B
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.bundle import Bundle, Golden
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput

LOGIT_TOLERANCE = 1e-4  # float32 sums in another order over 16 segments; a wrong operator is off by far more


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """Gaps are the largest absolute differences of a segment, infinite where either side is not finite."""

    num_puzzles: int
    logit_gap_by_segment: tuple[float, ...]
    margin_gap_by_segment: tuple[float, ...]
    q_halt_gap_by_segment: tuple[float, ...]
    num_different_answers: int
    num_different_halts: int

    @property
    def max_logit_gap(self) -> float:
        return max(self.logit_gap_by_segment)

    @property
    def max_halting_gap(self) -> float:
        """Of margins and of q_halt, which ranks votes: a wrong halting head may cancel out of one of them."""
        return max(self.margin_gap_by_segment + self.q_halt_gap_by_segment)

    def passes(self, tolerance: float = LOGIT_TOLERANCE) -> bool:
        """The same answers after every segment, the same halting, and all values within the tolerance."""
        same = self.num_different_answers == 0 and self.num_different_halts == 0
        return same and max(self.max_logit_gap, self.max_halting_gap) <= tolerance


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
    """Compare an engine with golden traces that need not stand in a bundle yet."""
    for slot, puzzle_id in enumerate(golden.puzzle_ids_B.tolist()):
        engine.load(slot, golden.tokens_BT[slot], puzzle_table[puzzle_id])
    outputs = [_kept(engine.step(len(golden.tokens_BT))) for _ in golden.answer_SBT]
    answer_SBT = np.stack([output.answer_BT for output in outputs])
    margin_SB = np.stack([output.halt_margin_B for output in outputs])
    halt_B = _halting_segments(golden.tokens_BT, answer_SBT, margin_SB, puzzle, policy)
    golden_halt_B = _halting_segments(golden.tokens_BT, golden.answer_SBT, golden.halt_margin_SB, puzzle, policy)
    return ParityReport(
        num_puzzles=len(golden.tokens_BT),
        logit_gap_by_segment=_gaps([_logits(output) for output in outputs], golden.logits_SBTV),
        margin_gap_by_segment=_gaps(margin_SB, golden.halt_margin_SB),
        q_halt_gap_by_segment=_gaps([output.q_halt_B for output in outputs], golden.q_halt_SB),
        num_different_answers=int((answer_SBT != golden.answer_SBT).any(axis=2).sum()),
        num_different_halts=int((halt_B != golden_halt_B).sum()),
    )


def _kept(output: StepOutput) -> StepOutput:
    return StepOutput(
        answer_BT=output.answer_BT.copy(),
        halt_margin_B=output.halt_margin_B.copy(),
        q_halt_B=output.q_halt_B.copy(),
        logits_BTV=_logits(output).copy(),
    )


def _logits(output: StepOutput) -> Float32:
    if output.logits_BTV is None:
        raise ValueError("the engine hands out no logits, which parity compares: build it with want_logits=True.")
    return output.logits_BTV


def _gaps(ours: Float32 | list[Float32], theirs: Float32) -> tuple[float, ...]:
    gaps = (float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))
    return tuple(gap if np.isfinite(gap) else float("inf") for gap in gaps)


def _halting_segments(
    tokens_BT: Int32, answer_SBT: Int32, margin_SB: Float32, puzzle: Checker, policy: HaltingPolicy
) -> NDArray[np.int64]:
    """After how many segments each puzzle halts under the policy."""
    num_puzzles = len(tokens_BT)
    policies = columns_of(policy, num_puzzles)
    stops_SB = np.stack(
        [
            decide_B(margin_B, np.full(num_puzzles, segment), puzzle.check_BT(tokens_BT, answer_BT), policies) > 0
            for segment, (answer_BT, margin_B) in enumerate(zip(answer_SBT, margin_SB, strict=True), start=1)
        ]
    )
    stops_SB[-1] = True  # a trace may be shorter than the policy would let a puzzle run
    return stops_SB.argmax(axis=0) + 1
