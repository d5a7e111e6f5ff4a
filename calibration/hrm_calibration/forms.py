"""The precisions of a model on their way into a bundle: made, measured, judged.

Each stage is a complete object and adds to the one before: `Graphs` are made, `Measured` says how
they solve the held-out puzzles, `Form` how they compare with PyTorch and with float32.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from onnx import ModelProto

from hrm_calibration.graph_rules import check_graph
from hrm_calibration.half import float32_nodes, half_graph
from hrm_calibration.int8 import calibrate, for_cpus
from hrm_calibration.quantize import quantize
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_host.progress import Stages
from hrm_parity.halting_curve import PolicyScore, Rollout, choose, learned_curve, roll_out
from hrm_parity.outcomes import Outcomes, Paired, Score, paired
from hrm_parity.report import ParityReport
from hrm_puzzles.data.sources import Questions

HALTING_LOSS = 0.005
"""Share of exact solves that halting early may cost, if no threshold is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Graphs:
    """The graphs of one precision by file name; `origin` says how they were made.

    The first is for TensorRT, the last for CPUs. Most precisions have one for both.
    """

    precision: str
    files: Mapping[str, ModelProto]
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def portable(self) -> ModelProto:
        return next(iter(self.files.values()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured(Graphs):
    """Graphs with their held-out rollout; `policy` holds the threshold chosen on it."""

    rollout: Rollout
    curve: Sequence[PolicyScore]
    policy: HaltingPolicy

    @property
    def outcomes(self) -> Outcomes:
        """How the held-out puzzles end under the policy."""
        return self.rollout.under(self.policy)

    @property
    def score(self) -> Score:
        return self.outcomes.score()

    def losses_against(self, fp32: "Measured") -> dict[str, Paired]:
        """Losses puzzle by puzzle under the policy."""
        theirs = fp32.outcomes
        ours = self.outcomes
        return {
            "exact": paired(theirs.exact_N, ours.exact_N),
            "proven": paired(theirs.proven_N, ours.proven_N),
        }

    def halting_curve(self) -> dict[str, Any]:
        """The learned curve as the manifest holds it."""
        points: list[dict[str, float]] = []
        for point in self.curve:
            points.append(
                {
                    "threshold": point.policy.threshold,
                    "exact": point.total.exact,
                    "proven": point.total.proven,
                    "mean_segments": point.total.mean_segments,
                }
            )
        return {
            "num_puzzles": self.score.num_puzzles,
            "threshold": self.policy.threshold,
            "points": points,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Form(Measured):
    """A judged precision: `parity` with PyTorch by file name, `lost` against float32.

    `undecided` says why the held-out puzzles could not tell whether it loses too much.
    """

    parity: Mapping[str, ParityReport]
    lost: Mapping[str, Paired] | None = None
    undecided: str | None = None

    @property
    def parity_on_cpu(self) -> ParityReport:
        return list(self.parity.values())[-1]

    def as_json(self) -> dict[str, Any]:
        """The precision's page in parity.json."""
        golden: dict[str, Any] = {}
        for name, report in self.parity.items():
            golden[name] = {**report.as_json(), "max_logit_gap": report.max_logit_gap}
        held_out: dict[str, Any] = asdict(self.score)
        if self.lost is not None:
            lost = {name: asdict(one) for name, one in self.lost.items()}
            held_out["lost_against_fp32"] = lost
        return {"golden": golden, "held_out": held_out, **self.origin}


def make_fp16(served: ServedGraph, ranges: Mapping[str, float]) -> Graphs:
    kept = float32_nodes(served.graph, ranges)
    half = half_graph(served.graph, kept)
    check_graph(half)
    origin = {"float32_nodes": sorted(kept)}
    return Graphs(precision="fp16", files={"step.fp16.onnx": half}, origin=origin)


def make_int8(
    served: ServedGraph,
    ranges: Mapping[str, float],
    questions: Questions,
    budget: float,
    stages: Stages,
) -> Graphs:
    """INT8 graphs: between the INT8 products, float16 for TensorRT and float32 for CPUs."""
    found = calibrate(served, questions, budget=budget, stages=stages)
    signed = quantize(served.graph, found.scales, weight_only=found.weight_only)
    kept = float32_nodes(signed, ranges)
    portable = half_graph(signed, kept)
    check_graph(portable)
    narrow = for_cpus(served.graph, found.scales, found.weight_only)
    return Graphs(
        precision="int8",
        files={"step.int8.onnx": portable, "step.int8.cpu.onnx": narrow},
        origin={"float32_nodes": sorted(kept), "calibration": found.as_json()},
    )


def measure(
    graphs: Graphs,
    served: ServedGraph,
    held_out: Questions,
    stages: Stages,
    end_s: float = math.inf,
) -> Measured:
    """Run the held-out puzzles through all segments of the graph that a CPU runs.

    They are all, or as many as begin before the monotonic time `end_s`. The threshold is the one
    with the fewest segments that loses at most `HALTING_LOSS` exact solves against all segments. It
    is chosen and scored on the same puzzles.
    """
    *_, on_cpu = graphs.files.values()
    with served.engine(on_cpu) as engine:
        rollout = roll_out(
            engine,
            served.puzzle,
            served.puzzle_table,
            held_out,
            served.policy.max_segments,
            end_s=end_s,
            progress=partial(stages.show, f"measuring {graphs.precision}"),
        )
    curve = learned_curve(rollout)
    threshold = choose(curve, HALTING_LOSS).policy.threshold
    policy = replace(served.policy, threshold=threshold)
    return Measured(**vars(graphs), rollout=rollout, curve=curve, policy=policy)
