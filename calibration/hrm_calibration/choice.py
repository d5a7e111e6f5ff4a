"""Which of the INT8 graphs: each is put in the place of the float graph and solves the same puzzles.

Measured on the unsigned form through the engine and the lane that serve; the signed form is the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_calibration.drift import carries_after, drift
from hrm_calibration.int8_report import BudgetStep, MethodScore, Solves
from hrm_calibration.paired import paired
from hrm_calibration.quantise import quantise, unsigned
from hrm_calibration.questions import Questions
from hrm_calibration.recording import slots_for
from hrm_calibration.rollouts import Outcome, States, solve
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.engines.onnx import OnnxEngine

Progress = Callable[[str, int, int], object]
"""Hears the stage, how much of it is done and of how much."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """A float graph with all that it takes to try another in its place."""

    graph: onnx.ModelProto
    puzzle: Checker
    puzzle_table: NDArray[np.float32]
    policy: HaltingPolicy
    weight_bits: int
    num_threads: int
    progress: Progress

    def quantised(self, scales: Mapping[str, float], weight_only: Sequence[str] = ()) -> onnx.ModelProto:
        """The unsigned form."""
        return unsigned(quantise(self.graph, scales, weight_only=weight_only, weight_bits=self.weight_bits))

    def outcome(self, graph: onnx.ModelProto, questions: Questions, stage: str) -> Outcome:
        """How each puzzle ends with that graph in the engine that serves."""
        with TemporaryDirectory() as directory:
            path = Path(directory) / "step.onnx"
            path.write_bytes(graph.SerializeToString())
            engine = OnnxEngine(path, num_slots=slots_for(self.graph), num_threads=self.num_threads)
            try:
                return solve(
                    engine,
                    self.puzzle,
                    self.puzzle_table,
                    questions,
                    self.policy,
                    progress=lambda done: self.progress(stage, done, len(questions)),
                )
            finally:
                engine.close()

    def score_methods(
        self, scales_of: Mapping[str, Mapping[str, float]], questions: Questions, states: States, float32: Outcome
    ) -> list[MethodScore]:
        """Each method's solves and drift, in the order given; `float32` is how the same puzzles ended without it."""
        num_rows = slots_for(self.graph)
        reference = carries_after(self.graph, states, num_rows=num_rows, num_threads=self.num_threads)
        scores: list[MethodScore] = []
        for method, scales in scales_of.items():
            graph = self.quantised(scales)
            ours = carries_after(graph, states, num_rows=num_rows, num_threads=self.num_threads)
            outcome = self.outcome(graph, questions, f"trying {method}")
            exact = paired(float32.exact_N, outcome.exact_N)
            moved = drift(ours, reference)
            scores.append(MethodScore(method=method, solves=solves_of(outcome), exact=exact, drift=moved))
        return scores

    def budget_steps(
        self,
        scales: Mapping[str, float],
        ranking: Sequence[str],
        questions: Questions,
        without: MethodScore,
        budget: float,
    ) -> list[BudgetStep]:
        """One more of the most sensitive matrices weight-only at a time, until at most the share `budget` is lost.

        `without` is the score with none. Refuses where not even one matrix can have its inputs rounded.
        """
        steps = [BudgetStep(num_weight_only=0, loss=without.exact.loss)]
        while steps[-1].loss > budget + 1e-9:
            count = len(steps)
            if count == len(ranking):
                raise ValueError(
                    f"INT8 loses more than {100 * budget:g} points of exact solves even where only one matrix has its "
                    "inputs rounded; allow a greater loss or export without INT8."
                )
            graph = self.quantised(scales, ranking[:count])
            solves = solves_of(self.outcome(graph, questions, f"{count} matrices weight-only"))
            steps.append(BudgetStep(num_weight_only=count, loss=without.exact.reference - solves.exact))
        return steps


def best_of(scores: Sequence[MethodScore]) -> MethodScore:
    """Of the methods that cannot be told from the one of most exact solves, the one that moves the carry least.

    A few hundred puzzles leave a point or two to chance, and the drift is measured without any.
    """
    most = max(scores, key=lambda score: score.solves.exact)
    return min((score for score in scores if score.exact.low <= most.exact.loss), key=lambda score: score.drift)


def solves_of(outcome: Outcome) -> Solves:
    return Solves(
        exact=float(outcome.exact_N.mean()),
        proven=float(outcome.proven_N.mean()),
        mean_segments=float(outcome.segments_N.mean()),
    )
