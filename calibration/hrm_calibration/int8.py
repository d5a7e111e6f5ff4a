"""INT8 calibration from end to end; read `Int8Trials.report` first.

Ranges are recorded on some puzzles, the method and the weight-only matrices are chosen on others, and the rest judge.
Layers are ranked by the drift of the carry in one segment: exact solves of a few hundred puzzles cannot rank them.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from onnx import ModelProto

from hrm_calibration import int8_report as found
from hrm_calibration.halting_curve import Outcomes
from hrm_calibration.quantise import METHODS, Histogram, Site, call_sites, quantise, scale_of, unsigned
from hrm_calibration.rollouts import Recorder, ServedGraph, States, session_of, slots_for
from hrm_edge_runtime.engines.engine import CARRIES, Float32
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

Scales = Mapping[str, float]  # by call site


@dataclass(frozen=True, kw_only=True)
class Int8Settings:
    """What decides the outcome. `budget` is the share of exact solves that may be lost.

    At most a quarter of the puzzles calibrates and a half chooses: methods on the first `num_tried`, the budget on all.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    num_calibration: int = 256
    num_tried: int = 1024
    num_choice: int = 4096
    budget: float = 0.005
    seed: int = 0


def calibrate(
    served: ServedGraph,
    questions: Questions,
    *,
    settings: Int8Settings,
    stages: Stages | None = None,
    cache: Path | None = None,
) -> tuple[ModelProto, found.Int8Report]:
    """The signed INT8 form of a served graph, chosen and judged on `questions` under its halting rule.

    `cache` keeps a finished calibration for the next time; one of another graph, other puzzles or other settings is
    refused, as are too few puzzles and puzzles of tasks that the table does not hold.
    """
    if len(questions) < 4:
        raise ValueError(f"{len(questions)} puzzles are too few to calibrate, choose and judge by; give thousands.")
    questions.require_ids(len(served.puzzle_table))
    key = key_of(served, questions, settings)
    report = None if cache is None else found.Int8Report.read(cache, key)
    if report is None:
        report = Int8Trials(served=served, settings=settings, stages=stages or Stages()).report(questions, key)
        if cache is not None:
            report.write(cache)
    return quantise(served.graph, report.scales, weight_only=report.weight_only), report


def for_cpus(graph: ModelProto, scales: Scales, weight_only: Collection[str]) -> ModelProto:
    """The same calibration with weights of seven bits, for ONNX Runtime's kernels."""
    return unsigned(quantise(graph, scales, weight_only=weight_only, weight_bits=7))


def key_of(served: ServedGraph, questions: Questions, settings: Int8Settings) -> str:
    """sha256 of the graph's bytes, the puzzle table, the puzzles and everything that decides the outcome."""
    digest = hashlib.sha256(served.graph.SerializeToString(deterministic=True))
    for row in served.puzzle_table:  # row by row: the table may be a mapped file larger than memory
        digest.update(np.ascontiguousarray(row, np.float32).tobytes())
    digest.update(questions.fingerprint().encode())
    digest.update(json.dumps({**asdict(settings), **asdict(served.policy)}, sort_keys=True).encode())
    return digest.hexdigest()


def parts_of(questions: Questions, settings: Int8Settings) -> tuple[Questions, Questions, Questions]:
    """Puzzles to record, to choose by and to judge by, at random; none is in two of them."""
    first = min(settings.num_calibration, len(questions) // 4)
    second = first + min(settings.num_choice, len(questions) // 2)
    order_N = np.random.default_rng(settings.seed).permutation(len(questions))
    return questions.at(order_N[:first]), questions.at(order_N[first:second]), questions.at(order_N[second:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Trials:
    """Puts INT8 forms in the place of a served graph; `float32` arguments say how the same puzzles ended without.

    Measured on the form for CPUs through the engine and the lane that serve.
    """

    served: ServedGraph
    settings: Int8Settings
    stages: Stages

    def report(self, questions: Questions, key: str) -> found.Int8Report:
        """Record, try every method, keep the best, leave weight-only what the budget asks for, and judge."""
        graph, settings = self.served.graph, self.settings
        to_record, to_choose, to_judge = parts_of(questions, settings)
        recorder, progress = Recorder(graph, seed=settings.seed), partial(self.stages.show, "recording ranges")
        segments_N = self.served.observed(to_record, recorder.observe, progress=progress).segments_N
        sites = [site_range(site, recorder.histograms[site.name], settings.methods) for site in call_sites(graph)]
        scales_of = {method: {site.name: site.scales[method] for site in sites} for method in settings.methods}
        to_try = to_choose.at(np.arange(min(settings.num_tried, len(to_choose))))
        float32 = self.outcomes(to_choose, "float32")
        methods = self.score_methods(scales_of, to_try, recorder.states, float32.at(slice(len(to_try))))
        chosen = best_of(methods).method
        ranking = self.sensitivity(scales_of[chosen], recorder.states)
        worst_first = [layer.weight for layer in ranking]
        steps = self.budget_steps(scales_of[chosen], worst_first, to_choose, float32)
        weight_only = worst_first[: steps[-1].num_weight_only]
        final = self.quantised(scales_of[chosen], weight_only)
        return found.Int8Report(
            key=key,
            num_calibration=len(to_record),
            num_tried=len(to_try),
            num_choice=len(to_choose),
            reach=[int((segments_N > segment).sum()) for segment in range(int(segments_N.max()))],
            sites=sites,
            float32=solves_of(float32),
            methods=methods,
            chosen=chosen,
            sensitivity=ranking,
            budget=settings.budget,
            budget_steps=steps,
            weight_only=weight_only,
            judged=self.judged(final, to_judge),
            size_bytes={"fp32": graph.ByteSize(), "int8": final.ByteSize()},
        )

    def quantised(self, scales: Scales, weight_only: Sequence[str] = ()) -> ModelProto:
        """The form for CPUs."""
        return for_cpus(self.served.graph, scales, weight_only)

    def outcomes(self, questions: Questions, stage: str, other: ModelProto | None = None) -> Outcomes:
        return self.served.outcomes(questions, other=other, progress=partial(self.stages.show, stage))

    def score_methods(
        self, scales_of: Mapping[str, Scales], questions: Questions, states: States, float32: Outcomes
    ) -> list[found.MethodScore]:
        """Each method's solves and drift, in the order given."""
        reference = carries_after(self.served, self.served.graph, states)
        scores: list[found.MethodScore] = []
        for method, scales in scales_of.items():
            graph = self.quantised(scales)
            moved = drift(carries_after(self.served, graph, states), reference)
            outcomes = self.outcomes(questions, f"trying {method}", graph)
            exact = found.paired(float32.exact_N, outcomes.exact_N)
            scores.append(found.MethodScore(method=method, solves=solves_of(outcomes), exact=exact, drift=moved))
        return scores

    def sensitivity(self, scales: Scales, states: States) -> list[found.LayerDrift]:
        """Each matrix with the drift of rounding what it reads, all others weight-only; the worst first."""
        weights = sorted({site.weight for site in call_sites(self.served.graph)})
        reference = carries_after(self.served, self.quantised(scales, weights), states)
        layers: list[found.LayerDrift] = []
        for weight in weights:
            graph = self.quantised(scales, [other for other in weights if other != weight])
            moved = drift(carries_after(self.served, graph, states), reference)
            layers.append(found.LayerDrift(weight=weight, drift=moved))
            self.stages.show("ranking layers", len(layers), len(weights))
        return sorted(layers, key=lambda layer: -layer.drift)

    def budget_steps(
        self, scales: Scales, ranking: Sequence[str], questions: Questions, float32: Outcomes
    ) -> list[found.BudgetStep]:
        """Leave one more of the most sensitive matrices weight-only at a time, until the budget is kept.

        Refuses where not even one matrix can have its inputs rounded (ValueError).
        """
        steps: list[found.BudgetStep] = []
        for count in range(len(ranking)):
            graph = self.quantised(scales, ranking[:count])
            outcomes = self.outcomes(questions, f"{count} matrices weight-only", graph)
            steps.append(found.BudgetStep(num_weight_only=count, exact=found.paired(float32.exact_N, outcomes.exact_N)))
            if is_kept(steps[-1].exact, self.settings.budget):
                return steps
        raise ValueError(
            f"INT8 loses more than {100 * self.settings.budget:g} points of exact solves even where only one matrix "
            "has its inputs rounded; allow a greater loss or export without INT8."
        )

    def judged(self, final: ModelProto, questions: Questions) -> found.Judged:
        float32 = self.outcomes(questions, "judging float32")
        int8 = self.outcomes(questions, "judging int8", final)
        return found.Judged(
            float32=solves_of(float32),
            int8=solves_of(int8),
            exact=found.paired(float32.exact_N, int8.exact_N),
            proven=found.paired(float32.proven_N, int8.proven_N),
        )


def best_of(scores: Sequence[found.MethodScore]) -> found.MethodScore:
    """Of the methods that chance cannot tell from the one of most exact solves, the one that moves the carry least."""
    most = max(scores, key=lambda score: score.solves.exact)
    return min((score for score in scores if score.exact.low <= most.exact.loss), key=lambda score: score.drift)


def is_kept(exact: found.Paired, budget: float) -> bool:
    """Whether a loss keeps the budget, by a standard error where so many puzzles tell the budget from nothing.

    Or chance alone would end the search: of 1,024 Sudokus half a point is less than one standard error.
    """
    margin = exact.standard_error if exact.standard_error <= budget else 0.0
    return exact.loss + margin <= budget + 1e-9


def solves_of(outcomes: Outcomes) -> found.Solves:
    score = outcomes.score()
    return found.Solves(exact=score.exact, proven=score.proven, mean_segments=score.mean_segments)


def site_range(site: Site, histogram: Histogram, methods: Sequence[str]) -> found.SiteRange:
    scales = {method: scale_of(histogram, method) for method in methods}
    return found.SiteRange(name=site.name, weight=site.weight, largest=histogram.largest, scales=scales)


def carries_after(served: ServedGraph, graph: ModelProto, states: States) -> list[Float32]:
    """Both carries one segment later, as many states at a time as are served."""
    session, num_rows = session_of(graph, served.num_threads), slots_for(served.graph)
    names = [f"{name}_next" for name in CARRIES]
    parts = [
        session.run(names, {name: rows[start : start + num_rows] for name, rows in states.items()})
        for start in range(0, len(states["fresh_B"]), num_rows)
    ]
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: list[Float32], reference: list[Float32]) -> float:
    """The larger relative distance (Euclidean) of the two carries."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, reference, strict=True))
