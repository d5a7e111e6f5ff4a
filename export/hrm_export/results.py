"""What goes into a bundle, and what each precision of it said before it was let in.

Against PyTorch on the golden traces, against float32 on held-out puzzles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import Golden
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.parity import LOGIT_TOLERANCE, ParityReport, compare
from hrm_export.measuring import Losses, Measured, losses, measure
from hrm_export.options import Options
from hrm_export.precisions import Form
from hrm_host.progress import Stages
from hrm_model.hrm import HRM
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle


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
        if report.passes():
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
