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
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_calibration.int8_report import BudgetStep, MethodScore, Paired, Solves, paired
from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.rollouts import CARRIES, Outcome, States, slots_for, solve
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_puzzles.data.held_out import Questions

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
        float32: Outcome,
        budget: float,
    ) -> list[BudgetStep]:
        """One more of the most sensitive matrices weight-only at a time, until the share `budget` is kept.

        `float32` is how the same puzzles ended without INT8. Refuses where not even one matrix can have its inputs
        rounded.
        """
        steps: list[BudgetStep] = []
        for count in range(len(ranking)):
            graph = self.quantised(scales, ranking[:count])
            outcome = self.outcome(graph, questions, f"{count} matrices weight-only")
            steps.append(BudgetStep(num_weight_only=count, exact=paired(float32.exact_N, outcome.exact_N)))
            if is_kept(steps[-1].exact, budget):
                return steps
        raise ValueError(
            f"INT8 loses more than {100 * budget:g} points of exact solves even where only one matrix has its "
            "inputs rounded; allow a greater loss or export without INT8."
        )


def best_of(scores: Sequence[MethodScore]) -> MethodScore:
    """Of the methods that cannot be told from the one of most exact solves, the one that moves the carry least.

    A few hundred puzzles leave a point or two to chance, and the drift is measured without any.
    """
    most = max(scores, key=lambda score: score.solves.exact)
    return min((score for score in scores if score.exact.low <= most.exact.loss), key=lambda score: score.drift)


def is_kept(exact: Paired, budget: float) -> bool:
    """Whether a loss keeps the budget, by a standard error where so many puzzles tell the budget from nothing.

    Or chance alone would end the search: of 1,024 Sudokus half a point is less than one standard error.
    """
    margin = exact.standard_error if exact.standard_error <= budget else 0.0
    return exact.loss + margin <= budget + 1e-9


def solves_of(outcome: Outcome) -> Solves:
    return Solves(
        exact=float(outcome.exact_N.mean()),
        proven=float(outcome.proven_N.mean()),
        mean_segments=float(outcome.segments_N.mean()),
    )


Carries = list[NDArray[np.float32]]


def carries_after(graph: onnx.ModelProto, states: States, *, num_rows: int, num_threads: int = 1) -> Carries:
    """Both carries one segment later, `num_rows` states at a time."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [f"{name}_next" for name in CARRIES]
    count = len(states["fresh_B"])
    parts = [
        session.run(names, {name: rows[start : start + num_rows] for name, rows in states.items()})
        for start in range(0, count, num_rows)
    ]
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: Carries, reference: Carries) -> float:
    """The larger relative distance (Euclidean) of the two carries."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, reference, strict=True))


def sensitivity(
    graph: onnx.ModelProto,
    scales: Mapping[str, float],
    states: States,
    *,
    weight_bits: int,
    num_threads: int = 1,
    progress: Callable[[int, int], object],
) -> list[tuple[str, float]]:
    """Each matrix with the drift of rounding what it reads, all others weight-only; the worst first."""
    weights = sorted({site.weight for site in call_sites(graph)})
    num_rows = slots_for(graph)

    def carries(weight_only: Sequence[str]) -> Carries:
        ours = unsigned(quantise(graph, scales, weight_only=weight_only, weight_bits=weight_bits))
        return carries_after(ours, states, num_rows=num_rows, num_threads=num_threads)

    reference = carries(weights)
    drifts: list[tuple[str, float]] = []
    for weight in weights:
        drifts.append((weight, drift(carries([other for other in weights if other != weight]), reference)))
        progress(len(drifts), len(weights))
    return sorted(drifts, key=lambda pair: -pair[1])
