"""Write a bundle beside its name, measure it through the real engine, and rename it only then: read `write_bundle`."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from hrm_calibration.halting_curve import PolicyScore, Rollout, Score, choose, learned_curve, roll_out
from hrm_calibration.int8 import Int8Settings, calibrate
from hrm_calibration.int8_report import Paired, paired
from hrm_calibration.quantise import unsigned
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import GOLDEN_NAME, IDENTIFIERS_NAME, PUZZLE_TABLE_NAME, Bundle, Golden
from hrm_edge_runtime.engines.engine import Float32, median_step_ms
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.manifest import write_manifest
from hrm_edge_runtime.parity.gates import LOGIT_TOLERANCE, passes
from hrm_edge_runtime.parity.report import ParityReport
from hrm_edge_runtime.parity.walk import compare
from hrm_export.contents import Contents, Options, parse_loop
from hrm_export.forms import float32_nodes, half_graph, record_ranges, unrolled_graph
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_export.torch_engine import SIZES, golden_traces
from hrm_host.atomic import new_directory
from hrm_host.progress import Stages
from hrm_puzzles.data.held_out import Questions

CANDIDATES = 16
"""Puzzles tried for each golden trace, since not every trace survives rounding."""
NUM_RANGE_PUZZLES = 64
NUM_SLOTS = 8
HALTING_LOSS = 0.005
"""Share of exact solves that stopping early may cost against running all segments, where no threshold is given."""
MEASURED_BATCHES = (1, 8)
MEASURE_S = 0.1  # a table of the report, no decision hangs on it


class ParityError(ValueError):
    """A graph that does not say what PyTorch says, or that solves too much less than it."""


@dataclass(kw_only=True, eq=False)
class Form:
    """One precision: the `portable` graph, its form for CPUs where there is another, and how it came about (`origin`).

    What it does is filled in as it goes into the bundle: `policy` holds the threshold chosen for it on the held-out
    puzzles, `parity` is with PyTorch by file name, `lost` against float32.
    """

    precision: str
    portable: ModelProto
    cpu: ModelProto | None = None
    origin: dict[str, Any] = field(default_factory=dict[str, Any])
    rollout: Rollout = field(init=False)
    curve: list[PolicyScore] = field(init=False)
    policy: HaltingPolicy = field(init=False)
    parity: dict[str, ParityReport] = field(init=False)
    lost: dict[str, Paired] | None = None

    @property
    def graphs(self) -> dict[str, ModelProto]:
        """By file name; the last one is what a CPU runs."""
        portable = {f"step.{self.precision}.onnx": self.portable}
        return portable if self.cpu is None else {**portable, f"step.{self.precision}.cpu.onnx": self.cpu}

    @property
    def on_cpu(self) -> ParityReport:
        """Of the file that was measured."""
        return list(self.parity.values())[-1]

    @property
    def score(self) -> Score:
        return self.rollout.under(self.policy).score()

    def halting_curve(self) -> dict[str, Any]:
        """As the manifest holds it."""
        shown = ("exact", "proven", "mean_segments")
        points = [
            {"threshold": point.policy.threshold, **{name: getattr(point.total, name) for name in shown}}
            for point in self.curve
        ]
        return {"num_puzzles": self.score.num_puzzles, "threshold": self.policy.threshold, "points": points}

    def as_json(self) -> dict[str, Any]:
        """As parity.json holds it: against PyTorch on the golden traces, against float32 on held-out puzzles."""
        golden = {
            name: {**report.as_json(), "max_logit_gap": report.max_logit_gap} for name, report in self.parity.items()
        }
        held_out: dict[str, Any] = asdict(self.score)
        if self.lost is not None:
            held_out["lost_against_fp32"] = {name: lost.model_dump() for name, lost in self.lost.items()}
        return {"golden": golden, "held_out": held_out, **self.origin}


def write_bundle(path: Path, contents: Contents, options: Options, stages: Stages) -> list[Form]:
    """Write the bundle whole or not at all, float32 first.

    Refuses a path that is taken (FileExistsError), a float32 graph that differs from PyTorch on the golden traces, and
    another precision that loses more exact solves than `max_loss` (ParityError).
    """
    with new_directory(path) as unfinished:
        np.save(unfinished / PUZZLE_TABLE_NAME, contents.served.puzzle_table)
        (unfinished / IDENTIFIERS_NAME).write_text(json.dumps(list(contents.identifiers)) + "\n")
        fp32 = Form(precision="fp32", portable=contents.served.graph)
        _write_and_measure(unfinished, fp32, contents, options, stages)
        candidates = contents.held_out.at(np.arange(min(CANDIDATES * options.puzzles, len(contents.held_out))))
        golden, num_candidates = golden_traces(contents.model, candidates, fp32.policy.threshold, options.puzzles)
        np.savez_compressed(unfinished / GOLDEN_NAME, allow_pickle=False, **vars(golden))
        fp32.origin = {"tolerance": LOGIT_TOLERANCE, "num_candidates": num_candidates}
        _compare(unfinished, fp32, golden, contents)
        _require_parity(fp32.on_cpu)
        forms, served = [fp32], replace(contents.served, policy=fp32.policy)
        for form in lower_precisions(served, contents.calibration, options, stages):
            _write_and_measure(unfinished, form, contents, options, stages)
            form.lost = losses(fp32, form)
            _compare(unfinished, form, golden, contents)
            _require_quality(form, form.lost["exact"], options.max_loss)
            forms.append(form)
        num_segments = parse_loop(options.loop)
        unrolled = {} if num_segments is None else _write_unrolled(unfinished, forms, num_segments)
        pages = {form.precision: form.as_json() for form in forms}
        (unfinished / "parity.json").write_text(json.dumps(pages, indent=2) + "\n")
        write_manifest(unfinished, **_manifest_fields(contents, forms, unrolled))
        Bundle.open(unfinished)
    return forms


def _write_and_measure(directory: Path, form: Form, contents: Contents, options: Options, stages: Stages) -> None:
    """Every held-out puzzle through all segments of the graph that a CPU runs; the halting rule is applied afterwards.

    Without `--threshold` the one of fewest segments is chosen that loses at most the share `HALTING_LOSS` against all
    segments. Chosen and scored on the same puzzles.
    """
    for name, graph in form.graphs.items():
        (directory / name).write_bytes(graph.SerializeToString(deterministic=True))
    served, limit, threshold = contents.served, contents.served.policy.max_segments, options.threshold
    progress = partial(stages.show, f"measuring {form.precision}")
    with closing(OnnxEngine(directory / list(form.graphs)[-1], num_slots=NUM_SLOTS)) as engine:
        form.rollout = roll_out(engine, served.puzzle, served.puzzle_table, contents.held_out, limit, progress=progress)
    form.curve = learned_curve(form.rollout)
    if threshold is None:
        threshold = choose(form.curve, float(form.rollout.exact_SN[-1].mean()), HALTING_LOSS).policy.threshold
    form.policy = replace(served.policy, threshold=threshold)


def _compare(directory: Path, form: Form, golden: Golden, contents: Contents) -> None:
    """Every graph of the form against PyTorch's traces."""
    table, puzzle = contents.served.puzzle_table, contents.served.puzzle
    form.parity = {}
    for name in form.graphs:
        with closing(OnnxEngine(directory / name, num_slots=len(golden.tokens_BT), want_logits=True)) as engine:
            form.parity[name] = compare(golden, engine, puzzle_table=table, puzzle=puzzle, policy=form.policy)


def _require_parity(report: ParityReport) -> None:
    """Stricter than replaying elsewhere: PyTorch ran on this very processor, so no segment may differ by more."""
    if not passes(report) or report.max_logit_gap > LOGIT_TOLERANCE:
        raise ParityError(
            f"the graph differs from PyTorch over {report.num_puzzles} puzzles (largest gap of logits "
            f"{report.max_logit_gap:.1e} and of halting values {report.max_halting_gap:.1e} where {LOGIT_TOLERANCE} is "
            f"allowed, {report.num_different_answers} other answers, {report.num_different_halts} other halts), so "
            "nothing was written; report the checkpoint's config.json as a fault"
        )


def _require_quality(form: Form, exact: Paired, max_loss: float) -> None:
    """Refuses a precision that loses more exact solves than `max_loss` points or whose logits are not finite."""
    if 100 * exact.loss > max_loss:
        raise ParityError(
            f"{form.precision} loses {100 * exact.loss:.2f} points of exact solves against fp32 over "
            f"{exact.num_puzzles} puzzles (95 %: {100 * exact.low:.2f} to {100 * exact.high:.2f}) where --max-loss "
            f"allows {max_loss:g}, so nothing was written; allow more, leave it out, or give INT8 a smaller "
            "--int8-budget"
        )

    for name, report in form.parity.items():
        if not math.isfinite(report.max_logit_gap):
            raise ParityError(
                f"{name} gives logits that are not finite, so nothing was written; leave {form.precision} out and "
                "report the checkpoint's config.json as a fault"
            )


def _write_unrolled(directory: Path, forms: Sequence[Form], num_segments: int) -> dict[str, str]:
    """The unrolled form of every precision; file names by precision."""
    stored = stored_sizes(forms[0].portable)
    names = {form.precision: f"unrolled.{form.precision}.onnx" for form in forms}
    for form in forms:
        graph = unrolled_graph(form.portable, form.policy, num_segments or form.policy.max_segments)
        check_graph(graph, stored)
        (directory / names[form.precision]).write_bytes(graph.SerializeToString(deterministic=True))
    return names


def _manifest_fields(contents: Contents, forms: Sequence[Form], unrolled: Mapping[str, str]) -> dict[str, Any]:
    config, policy = contents.model.config, forms[0].policy
    return {
        "name": contents.name,
        "puzzle": contents.served.puzzle.name,
        **{size: getattr(config, size) for size in SIZES},
        "max_segments": policy.max_segments,
        "halting": {"policy": policy.kind, "threshold": policy.threshold},
        "precisions": {form.precision: next(iter(form.graphs)) for form in forms},
        "cpu_graphs": {form.precision: list(form.graphs)[-1] for form in forms if form.cpu is not None},
        "unrolled": unrolled,
        "curves": {form.precision: form.halting_curve() for form in forms},
        "provenance": contents.provenance(),
    }


def lower_precisions(served: ServedGraph, questions: Questions, options: Options, stages: Stages) -> Iterator[Form]:
    """The other forms in the options, each made after the one before has been judged."""
    if not (options.fp16 or options.int8):
        return
    few, graph = questions.sample(NUM_RANGE_PUZZLES), served.graph
    ranges = record_ranges(served, few, progress=partial(stages.show, "recording ranges for float16"))
    if options.fp16:
        kept = float32_nodes(graph, ranges)
        half = half_graph(graph, kept)
        check_graph(half, stored_sizes(graph))
        yield Form(precision="fp16", portable=half, origin={"float32_nodes": sorted(kept)})
    if options.int8:
        served = replace(served, num_threads=os.cpu_count() or 1)
        settings = Int8Settings(budget=options.int8_budget / 100)
        signed, report = calibrate(served, questions, settings=settings, stages=stages, cache=options.cache)
        if options.report is not None:
            report.save(options.report)
        kept = float32_nodes(signed, ranges)
        portable = half_graph(signed, kept)
        check_graph(portable, stored_sizes(graph))
        fields = ("weight_bits", "num_calibration", "num_choice", "weight_only", "key")
        summary = {"method": report.chosen, **{name: getattr(report, name) for name in fields}}
        origin = {"float32_nodes": sorted(kept), "calibration": summary}
        yield Form(precision="int8", portable=portable, cpu=unsigned(signed), origin=origin)


def losses(reference: Form, ours: Form) -> dict[str, Paired]:
    """Puzzle by puzzle, under the rule as served and after all segments, where no threshold plays a part."""
    one, other = (form.rollout.under(form.policy) for form in (reference, ours))
    return {
        "exact": paired(one.exact_N, other.exact_N),
        "proven": paired(one.proven_N, other.proven_N),
        "exact_after_all_segments": paired(reference.rollout.exact_SN[-1], ours.rollout.exact_SN[-1]),
    }


def segment_ms(graph: Path, batch: int, questions: Questions, puzzle_table: Float32) -> float:
    """The median time of a segment with every slot in use, all cores."""
    with closing(OnnxEngine(graph, num_slots=batch)) as engine:
        for slot in range(batch):
            asked = questions[slot % len(questions)]
            engine.load(slot, asked.tokens_T, puzzle_table[asked.puzzle_id])
        return median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=5)
