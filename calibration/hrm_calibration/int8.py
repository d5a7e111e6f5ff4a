"""INT8 calibration from end to end; read `Int8Trials.report` first.

Ranges are recorded on some puzzles, the method and the weight-only matrices are chosen on others, and the rest judge.
All graphs run the same puzzles in the same order, and a comparison ends at the first look that decides it.
Layers are ranked by the drift of the carry in one segment: exact solves of a few hundred puzzles cannot rank them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from onnx import ModelProto

from hrm_calibration import INT8_BUDGET
from hrm_calibration import int8_report as found
from hrm_calibration.halting_curve import Outcomes
from hrm_calibration.quantise import METHODS, call_sites, quantise, scale_of, unsigned
from hrm_calibration.rollouts import Recorder, ServedGraph, States, session_of
from hrm_edge_runtime.engines.engine import CARRIES, Float32
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

FIRST_LOOK = 128
"""Puzzles after which a comparison is looked at for the first time; then at every doubling, and at the end."""
EARLY = 3.0
"""Standard errors that decide before the end (Haybittle and Peto), so that looking often costs no certainty."""

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
    budget: float = INT8_BUDGET


def calibrate(
    served: ServedGraph,
    questions: Questions,
    *,
    settings: Int8Settings,
    stages: Stages | None = None,
    judges: bool = True,
) -> tuple[ModelProto, found.Int8Report]:
    """The signed INT8 form of a served graph, chosen and judged on `questions` under its halting rule.

    Without `judges` it is left to the caller to judge. Refuses too few puzzles, and those of tasks that the table does
    not hold.
    """
    if len(questions) < 4:
        raise ValueError(f"{len(questions)} puzzles are too few to calibrate, choose and judge by; give thousands.")
    questions.require_ids(len(served.puzzle_table))
    trials = Int8Trials(served=served, settings=settings, stages=stages or Stages())
    report = trials.report(questions, judges=judges)
    return quantise(served.graph, report.scales, weight_only=report.weight_only), report


def for_cpus(graph: ModelProto, scales: Scales, weight_only: Collection[str]) -> ModelProto:
    """The same calibration with weights of seven bits, for ONNX Runtime's kernels."""
    return unsigned(quantise(graph, scales, weight_only=weight_only, weight_bits=7), weight_only)


def parts_of(questions: Questions, settings: Int8Settings) -> tuple[Questions, Questions, Questions]:
    """Puzzles to record, to choose by and to judge by, at random; none is in two of them."""
    first = min(settings.num_calibration, len(questions) // 4)
    second = first + min(settings.num_choice, len(questions) // 2)
    order_N = np.random.default_rng(0).permutation(len(questions))
    return questions.at(order_N[:first]), questions.at(order_N[first:second]), questions.at(order_N[second:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Trials:
    """Puts INT8 forms in the place of a served graph; `float32` arguments say how the same puzzles ended without.

    Measured on the form for CPUs through the engine and the lane that serve.
    """

    served: ServedGraph
    settings: Int8Settings
    stages: Stages

    def report(self, questions: Questions, *, judges: bool = True) -> found.Int8Report:
        """Record, try every method, keep the best, leave weight-only what the budget asks for, and judge."""
        graph, settings = self.served.graph, self.settings
        to_record, to_choose, to_judge = parts_of(questions, settings)
        recorder = Recorder(graph)
        show = partial(self.stages.show, "recording ranges")
        segments_N = self.served.observed(to_record, recorder.observe, progress=show).segments_N
        states = {name: rows[: settings.num_calibration] for name, rows in recorder.states.items()}
        histograms = recorder.histograms
        scales_of = {
            method: {site: scale_of(histogram, method) for site, histogram in histograms.items()}
            for method in settings.methods
        }
        float32 = Run(self, "float32", to_choose)
        runs = {
            method: Run(self, f"trying {method}", to_choose, self.quantised(scales_of[method])) for method in scales_of
        }
        methods, chosen = self.score_methods(runs, states, float32)
        ranking = self.sensitivity(scales_of[chosen], states)
        steps = self.budget_steps(scales_of[chosen], list(ranking), runs[chosen], float32)
        weight_only = list(ranking)[: len(steps) - 1]
        final = self.quantised(scales_of[chosen], weight_only)
        return found.Int8Report(
            num_calibration=len(to_record),
            num_tried=min(settings.num_tried, len(to_choose)),
            num_choice=len(to_choose),
            reach=[int((segments_N > segment).sum()) for segment in range(int(segments_N.max()))],
            largest={site: histogram.largest for site, histogram in histograms.items()},
            scales_of=scales_of,
            float32=float32.so_far.score(),
            methods=methods,
            chosen=chosen,
            sensitivity=ranking,
            budget=settings.budget,
            budget_steps=steps,
            weight_only=weight_only,
            judged=self.judged(final, to_judge) if judges else None,
            size_bytes={"fp32": graph.ByteSize(), "int8": final.ByteSize()},
        )

    def quantised(self, scales: Scales, weight_only: Sequence[str] = ()) -> ModelProto:
        return for_cpus(self.served.graph, scales, weight_only)

    def score_methods(
        self, runs: Mapping[str, "Run"], states: States, float32: "Run"
    ) -> tuple[list[found.MethodScore], str]:
        """Each method's solves and drift, and the best; one clearly worse than another goes no further."""
        left = list(runs)
        for look in looks(min(self.settings.num_tried, len(float32.questions))):
            exact = {method: runs[method].first(look).exact_N for method in left}
            best_N = max(exact.values(), key=np.sum)
            left = [method for method in left if surely(found.paired(best_N, exact[method])) <= 0]
            if len(left) == 1:
                break
        reference = carries_after(self.served, self.served.graph, states)
        scores: dict[str, found.MethodScore] = {}
        for method, run in runs.items():
            assert run.graph is not None
            moved = drift(carries_after(self.served, run.graph, states), reference)
            exact = found.paired(float32.first(len(run.so_far.exact_N)).exact_N, run.so_far.exact_N)
            scores[method] = found.MethodScore(method=method, solves=run.so_far.score(), exact=exact, drift=moved)
        return list(scores.values()), best_of([scores[method] for method in left]).method

    def sensitivity(self, scales: Scales, states: States) -> dict[str, float]:
        """Each matrix with the drift of rounding what it reads, all others weight-only; the worst first."""
        weights = sorted({site.weight for site in call_sites(self.served.graph)})

        reference = carries_after(self.served, self.quantised(scales, weights), states)
        moved: dict[str, float] = {}
        for weight in weights:
            graph = self.quantised(scales, [other for other in weights if other != weight])
            moved[weight] = drift(carries_after(self.served, graph, states), reference)
            self.stages.show("ranking layers", len(moved), len(weights))
        return dict(sorted(moved.items(), key=lambda item: -item[1]))

    def budget_steps(self, scales: Scales, ranking: Sequence[str], whole: "Run", float32: "Run") -> list[found.Paired]:
        """Leave one more of the most sensitive matrices weight-only at a time, until the budget is kept.

        `whole` runs with none. Refuses where not even one matrix can have its inputs rounded (ValueError).
        """
        steps: list[found.Paired] = []
        for count in range(len(ranking)):
            stage, graph = f"{count} matrices weight-only", self.quantised(scales, ranking[:count])
            run = Run(self, stage, float32.questions, graph) if count else whole
            steps.append(self.lost(run, float32))
            if is_kept(steps[-1], self.settings.budget):
                return steps
        raise ValueError(
            f"INT8 loses more than {100 * self.settings.budget:g} points of exact solves even where only one matrix "
            "has its inputs rounded; allow a greater loss or export without INT8."
        )

    def lost(self, run: "Run", float32: "Run") -> found.Paired:
        """What a graph loses, on as many puzzles as decide whether the budget is kept."""
        budget, left = self.settings.budget, looks(len(float32.questions))
        while True:
            look = left.pop(0)
            exact = found.paired(float32.first(look).exact_N, run.first(look).exact_N)
            is_decided = surely(exact) > budget or exact.loss + EARLY * exact.standard_error <= budget
            if is_decided or not left:
                return exact

    def judged(self, final: ModelProto, questions: Questions) -> found.Judged:
        runs = Run(self, "judging float32", questions), Run(self, "judging int8", questions, final)
        float32, int8 = (run.first(len(questions)) for run in runs)
        return found.Judged(
            float32=float32.score(),
            int8=int8.score(),
            exact=found.paired(float32.exact_N, int8.exact_N),
            proven=found.paired(float32.proven_N, int8.proven_N),
        )


@dataclass(eq=False)
class Run:
    """A graph (the served one where it is None) over the first of the puzzles, as far as somebody has asked."""

    trials: Int8Trials
    stage: str
    questions: Questions
    graph: ModelProto | None = None
    _parts: list[Outcomes] = field(default_factory=list[Outcomes])

    @property
    def so_far(self) -> Outcomes:
        return Outcomes.joined(self._parts)

    def first(self, count: int) -> Outcomes:
        start, served = sum(len(part.exact_N) for part in self._parts), self.trials.served
        if count > start:
            part, show = self.questions.at(np.arange(start, count)), partial(self.trials.stages.show, self.stage)
            self._parts.append(served.outcomes(part, other=self.graph, progress=show))
        return self.so_far.at(slice(count))


def looks(count: int) -> list[int]:
    doublings = (FIRST_LOOK << power for power in range(count.bit_length()))
    return [*(look for look in doublings if look < count), count]


def surely(exact: found.Paired) -> float:
    """What is lost at the very least."""
    return exact.loss - EARLY * exact.standard_error


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


def carries_after(served: ServedGraph, graph: ModelProto, states: States) -> list[Float32]:
    """Both carries one segment later, as many states at a time as are served."""
    session, num_rows = session_of(graph, served.num_threads, served.provider), served.num_slots
    names = [f"{name}_next" for name in CARRIES]
    parts = [
        session.run(names, {name: rows[start : start + num_rows] for name, rows in states.items()})
        for start in range(0, len(states["fresh_B"]), num_rows)
    ]
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: list[Float32], reference: list[Float32]) -> float:
    """The larger relative distance (Euclidean) of the two carries."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, reference, strict=True))
