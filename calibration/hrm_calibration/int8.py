"""INT8 calibration from end to end; read `Int8Trials.report` first.

Some puzzles serve to record ranges, others to choose the method and the weight-only matrices, the
rest to judge. All graphs run the same puzzles in the same order, and a comparison ends as soon as
it is decided. Layers are ranked by how far they move the carry in one segment, because exact solves
of a few hundred puzzles cannot rank them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from hrm_calibration import INT8_BUDGET
from hrm_calibration.halting_curve import Outcomes
from hrm_calibration.int8_report import Int8Report, Judged, MethodScore, Paired, paired
from hrm_calibration.quantize import call_sites, quantize, unsigned, with_products
from hrm_calibration.ranges import METHODS, scale_of
from hrm_calibration.rollouts import Recorder, ServedGraph, States, session_of
from hrm_edge_runtime.contract.arrays import Float32
from hrm_edge_runtime.engines.engine import CARRIES
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

FIRST_LOOK = 128
"""Puzzles before the first look at a comparison. More looks follow at every doubling."""
EARLY = 3.0
"""Standard errors that decide before the end (Haybittle and Peto): looking often stays safe."""
MIN_PUZZLES = 4
"""One to record, two to choose by, one to judge by."""
CPU_WEIGHT_BITS = 7

Scales = Mapping[str, float]
"""Activation scales by call site."""


@dataclass(frozen=True, kw_only=True)
class Int8Settings:
    """What decides the outcome. `budget` is the share of exact solves that may be lost.

    At most a quarter of the puzzles calibrates and half of them choose: the first `num_tried`
    choose the method, all choose the weight-only matrices.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    num_calibration: int = 256
    num_tried: int = 1024
    num_choice: int = 4096
    budget: float = INT8_BUDGET


def calibrate(
    served: ServedGraph,
    questions: Questions,
    *,
    settings: Int8Settings,
    stages: Stages | None = None,
    judges: bool = True,
) -> tuple[ModelProto, Int8Report]:
    """The signed INT8 form of a served graph, chosen and judged on `questions`.

    Without `judges` the caller judges. Raises ValueError for fewer than four puzzles and for
    puzzles of tasks that the puzzle table lacks.
    """
    if len(questions) < MIN_PUZZLES:
        problem = f"{len(questions)} puzzles are too few to calibrate, choose and judge by"
        raise ValueError(f"{problem}; give thousands")
    questions.require_ids(len(served.puzzle_table))
    trials = Int8Trials(served=served, settings=settings, stages=stages or Stages())
    report = trials.report(questions, judges=judges)
    signed = quantize(served.graph, report.scales, weight_only=report.weight_only)
    return signed, report


def for_cpus(graph: ModelProto, scales: Scales, weight_only: Collection[str]) -> ModelProto:
    """The same calibration with weights of seven bits, for ONNX Runtime's kernels."""
    signed = quantize(graph, scales, weight_only=weight_only, weight_bits=CPU_WEIGHT_BITS)
    return unsigned(with_products(signed, weight_only), weight_only)


def parts_of(
    questions: Questions,
    settings: Int8Settings,
) -> tuple[Questions, Questions, Questions]:
    """Disjoint random parts of the puzzles: to record, to choose by, to judge by."""
    num_recorded = min(settings.num_calibration, len(questions) // 4)
    num_choosing = min(settings.num_choice, len(questions) // 2)
    end = num_recorded + num_choosing
    order_N = np.random.default_rng(0).permutation(len(questions))
    to_record = questions.at(order_N[:num_recorded])
    to_choose = questions.at(order_N[num_recorded:end])
    to_judge = questions.at(order_N[end:])
    return to_record, to_choose, to_judge


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the calibration puzzles showed; all but `states` and `reach` by call site."""

    states: States
    reach: list[int]
    largest: dict[str, float]
    scales_of: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class MethodChoice:
    scores: list[MethodScore]
    chosen: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Trials:
    """Replaces a served graph by INT8 forms and compares them with float32 on the same puzzles.

    It runs the form for CPUs through the serving engine and lane.
    """

    served: ServedGraph
    settings: Int8Settings
    stages: Stages

    def report(self, questions: Questions, *, judges: bool = True) -> Int8Report:
        """Record ranges, choose a method, choose weight-only matrices within the budget, judge."""
        to_record, to_choose, to_judge = parts_of(questions, self.settings)
        recorded = self.record(to_record)
        float32 = Run(self, "float32", to_choose)
        runs: dict[str, Run] = {}
        for method, scales in recorded.scales_of.items():
            runs[method] = Run(self, f"trying {method}", to_choose, self.quantized(scales))
        methods = self.choose_method(runs, recorded.states, float32)
        scales = recorded.scales_of[methods.chosen]
        ranking = self.sensitivity(scales, recorded.states)
        steps = self.budget_steps(scales, list(ranking), runs[methods.chosen], float32)
        weight_only = list(ranking)[: len(steps) - 1]
        final = self.quantized(scales, weight_only)
        judged = None
        if judges:
            judged = self.judged(final, to_judge)
        return Int8Report(
            num_calibration=len(to_record),
            num_tried=min(self.settings.num_tried, len(to_choose)),
            num_choice=len(to_choose),
            reach=recorded.reach,
            largest=recorded.largest,
            scales_of=recorded.scales_of,
            float32=float32.so_far.score(),
            methods=methods.scores,
            chosen=methods.chosen,
            sensitivity=ranking,
            budget=self.settings.budget,
            budget_steps=steps,
            weight_only=weight_only,
            judged=judged,
            size_bytes={"fp32": self.served.graph.ByteSize(), "int8": final.ByteSize()},
        )

    def record(self, questions: Questions) -> Recorded:
        """Ranges of every call site, the scales each method takes from them, and sampled states."""
        recorder = Recorder(self.served.graph)
        show = partial(self.stages.show, "recording ranges")
        outcomes = self.served.observed(questions, recorder.observe, progress=show)
        histograms = recorder.histograms
        scales_of: dict[str, dict[str, float]] = {}
        for method in self.settings.methods:
            scales = {site: scale_of(seen, method) for site, seen in histograms.items()}
            scales_of[method] = scales
        reach = reach_of(outcomes.segments_N)
        largest = {site: seen.largest for site, seen in histograms.items()}
        states = recorder.states
        return Recorded(states=states, reach=reach, largest=largest, scales_of=scales_of)

    def quantized(self, scales: Scales, weight_only: Sequence[str] = ()) -> ModelProto:
        return for_cpus(self.served.graph, scales, weight_only)

    def choose_method(
        self,
        runs: Mapping[str, "Run"],
        states: States,
        float32: "Run",
    ) -> MethodChoice:
        """Score every method and choose the best.

        A method that is clearly worse than another one runs no further.
        """
        left = self.surviving_methods(runs, len(float32.questions))
        reference = carries_after(self.served, self.served.graph, states)
        scores: dict[str, MethodScore] = {}
        for method, run in runs.items():
            assert run.graph is not None
            carries = carries_after(self.served, run.graph, states)
            ours = run.so_far
            theirs = float32.first(len(ours.exact_N))
            scores[method] = MethodScore(
                method=method,
                solves=ours.score(),
                exact=paired(theirs.exact_N, ours.exact_N),
                drift=drift(carries, reference),
            )
        best = best_of([scores[method] for method in left])
        return MethodChoice(scores=list(scores.values()), chosen=best.method)

    def surviving_methods(self, runs: Mapping[str, "Run"], num_puzzles: int) -> list[str]:
        """Methods that no other beats with certainty, after as many puzzles as that takes."""
        left = list(runs)
        for look in looks(min(self.settings.num_tried, num_puzzles)):
            exact = {method: runs[method].first(look).exact_N for method in left}
            best_N = max(exact.values(), key=np.sum)
            for method, exact_N in exact.items():
                if surely(paired(best_N, exact_N)) > 0:
                    left.remove(method)
            if len(left) == 1:
                break
        return left

    def sensitivity(self, scales: Scales, states: States) -> dict[str, float]:
        """The drift by matrix, the worst first.

        Only the inputs of this matrix are rounded; all other matrices are weight-only.
        """
        weights = sorted({site.weight for site in call_sites(self.served.graph)})
        weight_only = self.quantized(scales, weights)
        reference = carries_after(self.served, weight_only, states)
        moved: dict[str, float] = {}
        for weight in weights:
            others = [other for other in weights if other != weight]
            carries = carries_after(self.served, self.quantized(scales, others), states)
            moved[weight] = drift(carries, reference)
            self.stages.show("ranking layers", len(moved), len(weights))
        worst_first = sorted(weights, key=lambda weight: -moved[weight])
        return {weight: moved[weight] for weight in worst_first}

    def budget_steps(
        self,
        scales: Scales,
        ranking: Sequence[str],
        whole: "Run",
        float32: "Run",
    ) -> list[Paired]:
        """Make matrices weight-only, the most sensitive first, until the budget is kept.

        Returns the loss of every step; the first is that of `whole`, without any such matrix.
        Raises ValueError if the budget is lost even with a single matrix whose inputs are rounded.
        """
        steps: list[Paired] = []
        for count in range(len(ranking)):
            run = whole
            if count:
                graph = self.quantized(scales, ranking[:count])
                run = Run(self, f"{count} matrices weight-only", float32.questions, graph)
            steps.append(self.lost(run, float32))
            if is_kept(steps[-1], self.settings.budget):
                return steps
        points = 100 * self.settings.budget
        raise ValueError(
            f"INT8 loses more than {points:g} points of exact solves even if only one matrix has "
            "its inputs rounded; allow a greater loss or export without INT8"
        )

    def lost(self, run: "Run", float32: "Run") -> Paired:
        """The loss of a graph, on as many puzzles as decide whether the budget is kept."""
        budget = self.settings.budget
        num_puzzles = len(float32.questions)
        for look in looks(num_puzzles):
            exact = paired(float32.first(look).exact_N, run.first(look).exact_N)
            at_most = exact.loss + EARLY * exact.standard_error
            if look == num_puzzles or surely(exact) > budget or at_most <= budget:
                return exact
        raise AssertionError("the last look covers all puzzles")

    def judged(self, final: ModelProto, questions: Questions) -> Judged:
        count = len(questions)
        float32 = Run(self, "judging float32", questions).first(count)
        int8 = Run(self, "judging int8", questions, final).first(count)
        return Judged(
            float32=float32.score(),
            int8=int8.score(),
            exact=paired(float32.exact_N, int8.exact_N),
            proven=paired(float32.proven_N, int8.proven_N),
        )


@dataclass(eq=False)
class Run:
    """Runs a graph (default: the served one) over as many of the first puzzles as needed."""

    trials: Int8Trials
    stage: str
    questions: Questions
    graph: ModelProto | None = None
    _parts: list[Outcomes] = field(default_factory=list[Outcomes])

    @property
    def so_far(self) -> Outcomes:
        return Outcomes.joined(self._parts)

    def first(self, count: int) -> Outcomes:
        start = sum(len(part.exact_N) for part in self._parts)
        if count > start:
            part = self.questions.at(np.arange(start, count))
            show = partial(self.trials.stages.show, self.stage)
            outcomes = self.trials.served.outcomes(part, other=self.graph, progress=show)
            self._parts.append(outcomes)
        return self.so_far.at(slice(count))


def reach_of(segments_N: NDArray[np.int32]) -> list[int]:
    """Number of puzzles that ran more than s segments, by s."""
    counts: list[int] = []
    for segment in range(int(segments_N.max())):
        is_beyond_N = segments_N > segment
        counts.append(int(is_beyond_N.sum()))
    return counts


def looks(count: int) -> list[int]:
    """Sample sizes at which a comparison is checked; the last is `count`."""
    numbers: list[int] = []
    look = FIRST_LOOK
    while look < count:
        numbers.append(look)
        look *= 2
    return [*numbers, count]


def surely(exact: Paired) -> float:
    """A lower bound of the loss."""
    return exact.loss - EARLY * exact.standard_error


def best_of(scores: Sequence[MethodScore]) -> MethodScore:
    """The method with the least drift among those that are statistically tied for best."""
    most = max(scores, key=lambda score: score.solves.exact)
    equal = [score for score in scores if score.exact.low <= most.exact.loss]
    return min(equal, key=lambda score: score.drift)


def is_kept(exact: Paired, budget: float) -> bool:
    """Whether a loss plus its standard error, if that is below the budget, keeps the budget.

    With fewer puzzles chance alone would end the search: of 1,024 Sudokus half a point is less than
    one standard error.
    """
    margin = 0.0
    if exact.standard_error <= budget:
        margin = exact.standard_error
    return exact.loss + margin <= budget + 1e-9


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
