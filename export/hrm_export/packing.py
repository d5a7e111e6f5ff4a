"""From a model to a bundle on disk: written beside its name, measured through the real engine, and only then named.

Whatever fails, is refused or dies on the way leaves nothing under the bundle's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import GOLDEN_NAME, PUZZLE_TABLE_NAME, Bundle, Golden
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.manifest import write_manifest
from hrm_edge_runtime.parity.gates import LOGIT_TOLERANCE, passes
from hrm_edge_runtime.parity.report import ParityReport
from hrm_edge_runtime.parity.walk import compare
from hrm_export import golden as golden_traces
from hrm_export.contents import Options, provenance
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_export.precisions import Bench, Form, Losses, Measured, losses, lower_precisions, measure
from hrm_export.unrolled import unrolled_graph
from hrm_host.atomic import new_directory
from hrm_host.progress import Stages
from hrm_model.hrm import HRM
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle

CANDIDATES = 16
"""Puzzles tried for each golden trace, since not every trace survives rounding."""


def write_bundle(path: Path, contents: Contents, options: Options, stages: Stages) -> list[Result]:
    """Writes the bundle whole or not at all, float32 first.

    Refuses a path that is taken (FileExistsError); a float32 graph that differs from PyTorch on the golden traces in an
    answer, in a halt or by more than LOGIT_TOLERANCE in a logit or a margin after any segment, and another precision
    that loses more exact solves than `max_loss` (ParityError).
    """
    with new_directory(path) as unfinished:
        np.save(unfinished / PUZZLE_TABLE_NAME, contents.puzzle_table)
        (unfinished / "identifiers.json").write_text(json.dumps(list(contents.identifiers)) + "\n")
        judge = Judge(directory=unfinished, contents=contents, options=options, stages=stages)
        form = Form(precision="fp32", portable=contents.graph, origin={})
        measured = judge.write_and_measure(form)
        golden, num_candidates = _golden(unfinished, contents, measured.policy.threshold, options.puzzles)
        origin = {"tolerance": LOGIT_TOLERANCE, "num_candidates": num_candidates}
        single = judge.single(replace(form, origin=origin), measured, golden)
        lower = lower_precisions(_bench(contents, measured.policy), options, stages)
        results = [single, *(judge.lower(form, single, golden) for form in lower)]
        unrolled = _write_unrolled(unfinished, results, contents, options)
        pages = {result.form.precision: result.as_json() for result in results}
        (unfinished / "parity.json").write_text(json.dumps(pages, indent=2) + "\n")
        write_manifest(unfinished, **_manifest_fields(contents, results, unrolled))
        Bundle.open(unfinished)
    return results


def _bench(contents: Contents, policy: HaltingPolicy) -> Bench:
    """Calibration runs under the rule that float32 is served with."""
    return Bench(
        graph=contents.graph,
        puzzle=contents.puzzle,
        puzzle_table=contents.puzzle_table,
        questions=contents.calibration,
        policy=policy,
    )


def _golden(directory: Path, contents: Contents, threshold: float, count: int) -> tuple[Golden, int]:
    """Traces of held-out puzzles, kept in the bundle, and how many puzzles were tried for them."""
    candidates = contents.held_out.at(np.arange(min(CANDIDATES * count, len(contents.held_out))))
    golden, num_candidates = golden_traces.golden_traces(contents.model, candidates, threshold, count)
    golden_traces.save(golden, directory / GOLDEN_NAME)
    return golden, num_candidates


def _write_unrolled(directory: Path, results: Sequence[Result], contents: Contents, options: Options) -> dict[str, str]:
    """The unrolled form of every precision, where it is asked for; file names by precision."""
    names: dict[str, str] = {}
    if options.unrolled is None:
        return names
    for result in results:
        policy, precision = result.measured.policy, result.form.precision
        graph = unrolled_graph(result.form.portable, policy, options.unrolled or policy.max_segments)
        check_graph(graph, stored_sizes(contents.graph))
        names[precision] = f"unrolled.{precision}.onnx"
        (directory / names[precision]).write_bytes(graph.SerializeToString(deterministic=True))
    return names


def _manifest_fields(contents: Contents, results: Sequence[Result], unrolled: Mapping[str, str]) -> dict[str, Any]:
    config, forms = contents.model.config, [result.form for result in results]
    policy = results[0].measured.policy
    return {
        "name": contents.name,
        "puzzle": contents.puzzle.name,
        "seq_len": config.seq_len,
        "vocab_size": config.vocab_size,
        "num_positions": config.num_positions,
        "hidden_size": config.hidden_size,
        "puzzle_vector_size": config.puzzle_vector_size,
        "num_puzzle_ids": config.num_puzzle_ids,
        "max_segments": policy.max_segments,
        "halting": {"policy": policy.kind, "threshold": policy.threshold},
        "precisions": {form.precision: next(iter(form.graphs)) for form in forms},
        "cpu_graphs": {form.precision: list(form.graphs)[-1] for form in forms if form.cpu is not None},
        "unrolled": unrolled,
        "curves": {result.form.precision: result.measured.halting_curve() for result in results},
        "provenance": provenance(contents.model, contents.meta),
    }


class ParityError(ValueError):
    """A graph that does not say what PyTorch says, or that solves too much less than it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """All that goes into a bundle; `meta` is the checkpoint's, `identifiers` name the rows of the puzzle table.

    The puzzles of `calibration` and `held_out` have nothing in common. `policy` says the rule, its threshold only where
    the options give one.
    """

    name: str
    model: HRM
    graph: onnx.ModelProto
    puzzle: Puzzle
    policy: HaltingPolicy
    calibration: Questions
    held_out: Questions
    identifiers: Sequence[str]
    meta: Mapping[str, Any]

    @property
    def puzzle_table(self) -> NDArray[np.float32]:
        return self.model.puzzle_table.float().numpy()


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One precision as it went into the bundle; `parity` by file name, `lost` against float32."""

    form: Form
    measured: Measured
    parity: Mapping[str, ParityReport]
    lost: Losses | None = None

    @property
    def on_cpu(self) -> str:
        """The file that was measured."""
        return list(self.form.graphs)[-1]

    def as_json(self) -> dict[str, Any]:
        """As parity.json holds it: against PyTorch on the golden traces, against float32 on held-out puzzles."""
        golden = {
            name: {**report.as_json(), "max_logit_gap": report.max_logit_gap} for name, report in self.parity.items()
        }
        lost = {} if self.lost is None else {"lost_against_fp32": self.lost.as_json()}
        score = self.measured.score
        held_out = {"num_puzzles": score.num_puzzles, "exact": score.exact, "proven": score.proven}
        held_out |= {"mean_segments": score.mean_segments, **lost}
        return {"golden": golden, "held_out": held_out, **self.form.origin}


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Writes each form into the unfinished bundle, measures it there, and refuses what must not go into it."""

    directory: Path
    contents: Contents
    options: Options
    stages: Stages

    def write_and_measure(self, form: Form) -> Measured:
        """On the held-out puzzles, with the graph that a CPU runs."""
        for name, graph in form.graphs.items():
            (self.directory / name).write_bytes(graph.SerializeToString(deterministic=True))
        held_out = self.contents.held_out
        return measure(
            self.directory / list(form.graphs)[-1],
            self.contents.puzzle,
            self.contents.puzzle_table,
            held_out,
            self.contents.policy,
            threshold=self.options.threshold,
            progress=lambda done: self.stages.show(f"measuring {form.precision}", done, len(held_out)),
        )

    def single(self, form: Form, measured: Measured, golden: Golden) -> Result:
        """Float32, which must say what PyTorch says."""
        result = Result(form=form, measured=measured, parity=self._compared(form, measured, golden))
        report = result.parity[result.on_cpu]
        if passes(report):
            return result
        raise ParityError(
            f"the graph differs from PyTorch over {report.num_puzzles} puzzles (largest gap of logits "
            f"{report.max_logit_gap:.1e} and of halting values {report.max_halting_gap:.1e} where {LOGIT_TOLERANCE} is "
            f"allowed, {report.num_different_answers} other answers, {report.num_different_halts} other halts), so "
            "nothing was written; report the checkpoint's config.json as a fault"
        )

    def lower(self, form: Form, single: Result, golden: Golden) -> Result:
        """Another precision, which may lose a little against float32 and must stay finite."""
        measured = self.write_and_measure(form)
        lost = losses(single.measured, measured)
        if 100 * lost.exact.loss > self.options.max_loss:
            low, high = 100 * lost.exact.low, 100 * lost.exact.high
            raise ParityError(
                f"{form.precision} loses {100 * lost.exact.loss:.2f} points of exact solves against fp32 over "
                f"{lost.exact.num_puzzles} puzzles (95 %: {low:.2f} to {high:.2f}) where --max-loss allows "
                f"{self.options.max_loss:g}, so nothing was written; allow more, leave it out, or give INT8 a smaller "
                "--int8-budget"
            )
        parity = self._compared(form, measured, golden)
        broken = [name for name, report in parity.items() if not math.isfinite(report.max_logit_gap)]
        if broken:
            raise ParityError(
                f"{broken[0]} gives logits that are not finite, so nothing was written; leave {form.precision} out and "
                "report the checkpoint's config.json as a fault"
            )
        return Result(form=form, measured=measured, parity=parity, lost=lost)

    def _compared(self, form: Form, measured: Measured, golden: Golden) -> dict[str, ParityReport]:
        """Every graph of the form against PyTorch's traces."""
        reports: dict[str, ParityReport] = {}
        for name in form.graphs:
            engine = OnnxEngine(self.directory / name, num_slots=len(golden.tokens_BT), want_logits=True)
            try:
                reports[name] = compare(
                    golden,
                    engine,
                    puzzle_table=self.contents.puzzle_table,
                    puzzle=self.contents.puzzle,
                    policy=measured.policy,
                )
            finally:
                engine.close()
        return reports
