"""A run on disk: `runs/NAME/` with checkpoints, `latest` and `best`, metrics, and what to do between steps."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from hrm_model import checkpoint
from hrm_train import curves
from hrm_train.batches import Rows
from hrm_train.evaluate import Evaluation, evaluate
from hrm_train.loop import StepReport, Trainer


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """When to look and to save; the run's result does not depend on them."""

    validate_steps: int = 1000
    checkpoint_minutes: float = 5.0
    report_steps: int = 20
    keep: int = 2


class Run:
    """Drives a trainer to its last sample; a signal ends it with a whole checkpoint."""

    def __init__(
        self,
        path: Path,
        trainer: Trainer,
        validation: Rows,
        intervals: Intervals,
        meta: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.path, self.trainer, self.validation, self.intervals = path, trainer, validation, intervals
        self.meta, self.say = meta, say
        self.stopped_by: str | None = None
        self._board = SummaryWriter(str(path / "board"))
        self._saved_at = time.monotonic()

    def finish(self, on_step: Callable[[int], None]) -> Evaluation | None:
        """Trains to `total_samples` and returns the last validation; None where a signal stopped it before."""
        trainer, evaluation = self.trainer, None
        self._catch_signals()
        while trainer.progress.samples < trainer.recipe.total_samples and self.stopped_by is None:
            report = trainer.step()
            on_step(trainer.progress.samples)
            is_last = trainer.progress.samples >= trainer.recipe.total_samples
            self._log(report)
            if is_last or trainer.progress.step % self.intervals.validate_steps == 0:
                evaluation = self._validate()
            if is_last or time.monotonic() - self._saved_at > 60 * self.intervals.checkpoint_minutes:
                self.save()
        if self.stopped_by is not None:
            self.save()
        self._board.close()
        return None if self.stopped_by else evaluation

    def save(self) -> Path:
        """Writes `step_N`, points `latest` to it and removes what is neither best nor among the last."""
        path, latest = self.path / f"step_{self.trainer.progress.step}", self.path / "latest"
        if not latest.exists() or checkpoint.resolve(latest) != path:  # never rewrite what a resume would read
            self.trainer.save(path, self._meta())
            checkpoint.point(latest, path)
        self._prune()
        self._saved_at = time.monotonic()
        return path

    def _validate(self) -> Evaluation:
        trainer = self.trainer
        evaluation = evaluate(trainer.averaged_model(), trainer.puzzle, self.validation)
        self.say(f"step {trainer.progress.step}: {evaluation.summary()}")
        for segments in (1, 4, len(evaluation.exact)):
            for name, value in evaluation.at(segments).items():
                self._board.add_scalar(f"val/{name}_at_{segments}", value, trainer.progress.samples)
        self._record({"step": trainer.progress.step, "samples": trainer.progress.samples, **_curves(evaluation)})
        curves.draw(self.path / "curve.png", [self.path])
        if evaluation.proven[-1] > trainer.progress.best_proven:
            trainer.progress.best_proven, trainer.progress.best_step = evaluation.proven[-1], trainer.progress.step
            checkpoint.point(self.path / "best", self.save())
        return evaluation

    def _log(self, report: StepReport) -> None:
        progress = self.trainer.progress
        if progress.step % self.intervals.report_steps:
            return
        for name, value in vars(report).items():
            self._board.add_scalar(f"train/{name}", value, progress.samples)
        self._board.add_scalar("train/revealed", progress.curriculum_level, progress.samples)

    def _record(self, values: dict[str, Any]) -> None:
        with (self.path / curves.VALIDATIONS).open("a") as file:
            file.write(
                json.dumps({"time": time.time(), "revealed": self.trainer.progress.curriculum_level, **values}) + "\n"
            )

    def _meta(self) -> dict[str, Any]:
        progress = self.trainer.progress
        return {
            **self.meta,
            "step": progress.step,
            "samples": progress.samples,
            "best_proven": progress.best_proven,
            "best_step": progress.best_step,
            "recipe_digest": self.trainer.recipe.digest,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _prune(self) -> None:
        kept = {checkpoint.resolve(self.path / name) for name in ("latest", "best") if (self.path / name).exists()}
        steps = sorted(self.path.glob("step_*"), key=lambda path: int(path.name[5:]))
        for path in steps[: -self.intervals.keep]:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _catch_signals(self) -> None:
        def stop(number: int, _frame: object) -> None:
            self.stopped_by = signal.Signals(number).name

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)


def _curves(evaluation: Evaluation) -> dict[str, Any]:
    return {name: [round(v, 4) for v in getattr(evaluation, name)] for name in ("exact", "proven", "cells")}


def commit_of_source() -> str:
    """The git commit that trained, or 'unknown' outside a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
