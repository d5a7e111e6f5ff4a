"""Which of the INT8 graphs: each is put in the place of the float graph and solves the same puzzles.

Measured on the unsigned form through the engine and the lane that serve; the signed form is the same function. Exact
solves of a few hundred puzzles cannot rank layers, since most change none: the drift of the carry in one segment, from
states that puzzles really pass through, tells them apart without noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from hrm_calibration.halting_curve import Outcomes
from hrm_calibration.int8_report import BudgetStep, LayerDrift, MethodScore, Paired, Solves, paired
from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.rollouts import ServedGraph, States, session_of, slots_for
from hrm_edge_runtime.engines.engine import CARRIES, Float32
from hrm_host.progress import Stages
from hrm_puzzles.data.held_out import Questions

Scales = Mapping[str, float]
"""By call site."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Trials:
    """Tries INT8 forms of a served graph in its place; `float32` arguments say how the same puzzles ended without."""

    served: ServedGraph
    weight_bits: int
    stages: Stages

    def quantised(self, scales: Scales, weight_only: Sequence[str] = ()) -> onnx.ModelProto:
        """The unsigned form."""
        return unsigned(quantise(self.served.graph, scales, weight_only=weight_only, weight_bits=self.weight_bits))

    def outcomes(self, questions: Questions, stage: str, other: onnx.ModelProto | None = None) -> Outcomes:
        return self.served.outcomes(questions, other=other, progress=partial(self.stages.show, stage))

    def score_methods(
        self, scales_of: Mapping[str, Scales], questions: Questions, states: States, float32: Outcomes
    ) -> list[MethodScore]:
        """Each method's solves and drift, in the order given."""
        reference = self._carries(self.served.graph, states)
        scores: list[MethodScore] = []
        for method, scales in scales_of.items():
            graph = self.quantised(scales)
            moved = drift(self._carries(graph, states), reference)
            outcomes = self.outcomes(questions, f"trying {method}", graph)
            exact = paired(float32.exact_N, outcomes.exact_N)
            scores.append(MethodScore(method=method, solves=solves_of(outcomes), exact=exact, drift=moved))
        return scores

    def sensitivity(self, scales: Scales, states: States) -> list[LayerDrift]:
        """Each matrix with the drift of rounding what it reads, all others weight-only; the worst first."""
        weights = sorted({site.weight for site in call_sites(self.served.graph)})
        reference = self._carries(self.quantised(scales, weights), states)
        layers: list[LayerDrift] = []
        for weight in weights:
            others = [other for other in weights if other != weight]
            moved = drift(self._carries(self.quantised(scales, others), states), reference)
            layers.append(LayerDrift(weight=weight, drift=moved))
            self.stages.show("ranking layers", len(layers), len(weights))
        return sorted(layers, key=lambda layer: -layer.drift)

    def budget_steps(
        self, scales: Scales, ranking: Sequence[str], questions: Questions, float32: Outcomes, budget: float
    ) -> list[BudgetStep]:
        """Leave one more of the most sensitive matrices weight-only at a time, until the share `budget` is kept.

        Refuses where not even one matrix can have its inputs rounded (ValueError).
        """
        steps: list[BudgetStep] = []
        for count in range(len(ranking)):
            graph = self.quantised(scales, ranking[:count])
            outcomes = self.outcomes(questions, f"{count} matrices weight-only", graph)
            steps.append(BudgetStep(num_weight_only=count, exact=paired(float32.exact_N, outcomes.exact_N)))
            if is_kept(steps[-1].exact, budget):
                return steps
        raise ValueError(
            f"INT8 loses more than {100 * budget:g} points of exact solves even where only one matrix has its "
            "inputs rounded; allow a greater loss or export without INT8."
        )

    def _carries(self, graph: onnx.ModelProto, states: States) -> list[Float32]:
        num_rows = slots_for(self.served.graph)
        return carries_after(graph, states, num_rows=num_rows, num_threads=self.served.num_threads)


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


def solves_of(outcomes: Outcomes) -> Solves:
    score = outcomes.score()
    return Solves(exact=score.exact, proven=score.proven, mean_segments=score.mean_segments)


def carries_after(graph: onnx.ModelProto, states: States, *, num_rows: int, num_threads: int = 1) -> list[Float32]:
    """Both carries one segment later, `num_rows` states at a time."""
    session = session_of(graph, num_threads)
    names = [f"{name}_next" for name in CARRIES]
    parts = [
        session.run(names, {name: rows[start : start + num_rows] for name, rows in states.items()})
        for start in range(0, len(states["fresh_B"]), num_rows)
    ]
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: list[Float32], reference: list[Float32]) -> float:
    """The larger relative distance (Euclidean) of the two carries."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, reference, strict=True))
