"""INT8 calibration from end to end; read `calibrate` first.

One sample of puzzles records the ranges and decides. At first the inputs of every matrix are
rounded. While that loses more than the budget, one more matrix becomes weight-only: stored in INT8,
multiplied in float. Matrices are ranked by how far they move the carry in one segment, because
exact solves of a few hundred puzzles cannot rank them.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from hrm_calibration.quantize import quantize, unsigned, with_products
from hrm_calibration.ranges import METHOD, scale_of
from hrm_calibration.rollouts import Recorder, ServedGraph, States, session_of
from hrm_edge_runtime.engines.engine import CARRIES, Float32
from hrm_host.progress import Stages
from hrm_parity.outcomes import Outcomes, Paired, paired
from hrm_puzzles.data.sources import Questions

MAX_PUZZLES = 2048
"""With 2 % of the puzzles ending otherwise, the standard error of a loss is 0.3 points."""
CPU_WEIGHT_BITS = 7

Scales = Mapping[str, float]
"""Activation scales by call site."""


class Calibration(NamedTuple):
    """What a calibration found on `num_puzzles` puzzles.

    scales: by call site
    ranking: drift of the carry in one segment if the inputs of this matrix alone are rounded, the
      worst matrix first; empty if no matrix has to be weight-only
    losses: exact solves lost with the n worst matrices weight-only, by n
    """

    num_puzzles: int
    scales: dict[str, float]
    ranking: dict[str, float]
    losses: list[Paired]

    @property
    def weight_only(self) -> list[str]:
        return list(self.ranking)[: len(self.losses) - 1]

    def as_json(self) -> dict[str, Any]:
        """Everything but the scales, which the graph holds."""
        return {
            "method": METHOD,
            "num_puzzles": self.num_puzzles,
            "weight_only": self.weight_only,
            "ranking": self.ranking,
            "losses": [asdict(lost) for lost in self.losses],
        }


def calibrate(
    served: ServedGraph,
    questions: Questions,
    *,
    budget: float,
    stages: Stages | None = None,
) -> Calibration:
    """Record ranges, then keep the worst matrices in float until the loss is within the budget.

    `budget` is the share of exact solves that may be lost. The form for CPUs decides, the coarser
    one. Raises ValueError for fewer than four puzzles, and if the budget is lost even with a single
    matrix whose inputs are rounded.
    """
    if len(questions) < 4:
        raise ValueError(f"{len(questions)} puzzles are too few to calibrate by; give thousands")
    stages = stages or Stages()
    sample = questions.sample(MAX_PUZZLES)
    show = partial(stages.show, "recording ranges")
    float32, recorder = served.recorded(sample, progress=show)
    scales = {site: scale_of(seen) for site, seen in recorder.histograms.items()}
    ranking: dict[str, float] = {}
    losses = [lost_by(served, scales, (), sample, float32, stages)]
    while not is_kept(losses[-1], budget):
        if not ranking:
            ranking = worst_first(served, scales, recorder, stages)
        if len(losses) == len(ranking):
            raise ValueError(
                f"INT8 loses more than {100 * budget:g} points of exact solves even if only one "
                "matrix has its inputs rounded; allow more with --max-loss, or export without INT8"
            )
        weight_only = list(ranking)[: len(losses)]
        losses.append(lost_by(served, scales, weight_only, sample, float32, stages))
    return Calibration(num_puzzles=len(sample), scales=scales, ranking=ranking, losses=losses)


def for_cpus(graph: ModelProto, scales: Scales, weight_only: Collection[str]) -> ModelProto:
    """The same calibration with weights of seven bits, for ONNX Runtime's kernels."""
    signed = quantize(graph, scales, weight_only=weight_only, weight_bits=CPU_WEIGHT_BITS)
    return unsigned(with_products(signed, weight_only), weight_only)


def lost_by(
    served: ServedGraph,
    scales: Scales,
    weight_only: Collection[str],
    sample: Questions,
    float32: Outcomes,
    stages: Stages,
) -> Paired:
    """Exact solves that the INT8 form loses on the sample in the serving engine and lane."""
    graph = for_cpus(served.graph, scales, weight_only)
    show = partial(stages.show, f"int8, {len(weight_only)} matrices weight-only")
    with served.engine(graph) as engine:
        int8 = served.solve(engine, sample, show)
    return paired(float32.exact_N, int8.exact_N)


def is_kept(lost: Paired, budget: float) -> bool:
    """Whether a loss plus its standard error, if that is below the budget, keeps the budget.

    With fewer puzzles chance alone would end the search: of 1,024 Sudokus half a point is less than
    one standard error.
    """
    margin = 0.0
    if lost.standard_error <= budget:
        margin = lost.standard_error
    return lost.loss + margin <= budget + 1e-9


def worst_first(
    served: ServedGraph,
    scales: Scales,
    recorder: Recorder,
    stages: Stages,
) -> dict[str, float]:
    """The drift by matrix, the worst first.

    Only the inputs of this matrix are rounded; all other matrices are weight-only.
    """
    weights = recorder.weights
    states = recorder.states
    reference = carries_after(served, for_cpus(served.graph, scales, weights), states)
    moved: dict[str, float] = {}
    for weight in weights:
        others = [other for other in weights if other != weight]
        carries = carries_after(served, for_cpus(served.graph, scales, others), states)
        moved[weight] = drift(carries, reference)
        stages.show("ranking matrices", len(moved), len(weights))
    return dict(sorted(moved.items(), key=lambda item: -item[1]))


def carries_after(served: ServedGraph, graph: ModelProto, states: States) -> list[Float32]:
    """Run one segment from these states; return both carries. Batches are as in serving."""
    session = session_of(graph, served.num_threads, served.provider)
    num_rows = served.num_slots
    names = [f"{name}_next" for name in CARRIES]
    parts: list[list[Any]] = []
    for start in range(0, len(states["fresh_B"]), num_rows):
        batch = slice(start, start + num_rows)
        inputs = {name: rows[batch] for name, rows in states.items()}
        parts.append(list(session.run(names, inputs)))
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: list[Float32], reference: list[Float32]) -> float:
    """Relative Euclidean distance from the reference; the larger one of the two carry tensors."""
    distances: list[float] = []
    for found, expected in zip(ours, reference, strict=True):
        distance = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        distances.append(float(distance))
    return max(distances)
