"""A run on disk: what happens between the steps of a trainer. Read `TrainingRun.finish` first.

run.json   lock   step_N/   latest   best   metrics.ndjson   validation.ndjson   curve.png   board/
"""

import json
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hrm_host.progress import Stages
from hrm_model.hrm import HRM
from hrm_puzzles.data import datasets
from hrm_train import batches, checkpoints, status, telemetry
from hrm_train.evaluate import Evaluation, HeldOut, Kind, evaluate, held_out
from hrm_train.hardware import Say
from hrm_train.loop import Trainer
from hrm_train.options import Intervals
from hrm_train.run_plan import RunPlan


class Stopped(Exception):  # noqa: N818  # a request, not an error
    """A signal asked the run to end."""


class TrainingRun:
    """Drives a trainer to its last sample; a signal ends it with a whole checkpoint, a bad number without one."""

    report_steps = 20

    def __init__(
        self,
        path: Path,
        trainer: Trainer,
        held_out: HeldOut,
        intervals: Intervals,
        meta: Mapping[str, Any],
        writers: Sequence[telemetry.Writer],
        say: Say,
    ) -> None:
        self.path, self.trainer, self.held_out, self.intervals = path, trainer, held_out, intervals
        self.meta, self.say = meta, say
        self.stopped_by: str | None = None
        self.checkpoints = checkpoints.Checkpoints(path, intervals.keep)
        self.history = status.History(path)
        self.telemetry = telemetry.Telemetry(path, trainer, writers, say)
        self._saved_at = time.monotonic()
        self._latest_figures = ""

    def finish(self, stages: Stages) -> Evaluation | None:
        """Trains to `total_samples` and returns the last validation; None where a signal stopped it before.

        The caller holds the run's lock (`sole_writer`), so that no other process's files are swept away.
        """
        trainer, intervals, stopping = self.trainer, self.intervals, False
        with self._until_signalled():
            evaluation = self._catch_up()
            while not self._is_over() and not stopping:
                self.telemetry.add(trainer.step())
                if self._every(self.report_steps) and (row := self.telemetry.flush()):
                    self._latest_figures = row.summary()
                if self._latest_figures:
                    progress, total = trainer.progress, trainer.recipe.total_samples
                    stages.show("training", progress.samples, total, self._latest_figures)
                if self._is_over() or self._every(intervals.validate_steps):
                    evaluation = self._validate()
                stopping = self._agreed(self.stopped_by is not None)
                is_late = time.monotonic() - self._saved_at >= 60 * intervals.checkpoint_minutes
                is_due = self._every(intervals.checkpoint_steps) or self._agreed(is_late)
                if self._is_over() or stopping or is_due:
                    self.save()
            self.telemetry.close()
        return None if self.stopped_by else evaluation

    def save(self) -> None:
        """Writes `step_N` and points `latest` to it; raises FloatingPointError where a value was not finite."""
        self.telemetry.flush()
        trainer, ranks, progress = self.trainer, self.trainer.ranks, self.trainer.progress
        best = self.history.best("whole", progress.step)
        lowest = self.history.best("whole", progress.step, lambda row: -row["loss"])
        meta = {
            **self.meta,
            "step": progress.step,
            "samples": progress.samples,
            "best_score": best and best["score"],
            "best_step": best and best["step"],
            "best_loss": lowest and lowest["loss"],
            "best_loss_step": lowest and lowest["step"],
            "recipe_digest": trainer.recipe.digest,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with trainer.meter.aside():
            written = self.checkpoints.named("latest")  # what a resume would read is never rewritten
            if ranks.any(ranks.is_first and written != self.path / f"step_{progress.step}"):
                write = partial(trainer.save, meta=meta)
                self.checkpoints.save(progress.step, write) if ranks.is_first else write(self.path)
        self._saved_at = time.monotonic()

    def _is_over(self) -> bool:
        return self.trainer.progress.samples >= self.trainer.recipe.total_samples

    def _every(self, steps: int) -> bool:
        return self.trainer.progress.step % steps == 0

    def _agreed(self, here: bool) -> bool:
        """Whether any rank wants it; ranks vote only at report steps, since that waits for the device."""
        ranks = self.trainer.ranks
        return here if ranks.world == 1 else self._every(self.report_steps) and ranks.any(here)

    def _catch_up(self) -> Evaluation | None:
        """After a kill: `best` may not name its checkpoint yet, and the validation due at this step may be missing."""
        step, ranks = self.trainer.progress.step, self.trainer.ranks
        owed = step > 0 and (self._is_over() or self._every(self.intervals.validate_steps))
        if ranks.is_first:
            self.checkpoints.sweep()
            best = self.history.best("whole", step)
            if best is not None and (self.path / f"step_{best['step']}").exists():
                self.checkpoints.choose(best["step"])
            owed &= all(row["step"] != step for row in self.history.rows())
        return self._validate() if ranks.any(ranks.is_first and owed) else None

    def _validate(self) -> Evaluation | None:
        """The first rank evaluates what is due; all save a whole set that went best. None where a signal came."""
        ranks, step, fast = self.trainer.ranks, self.trainer.progress.step, self.held_out.fast
        evaluation, is_best = None, False
        with self.trainer.meter.aside(), suppress(Stopped):
            if ranks.is_first:
                model, is_due = self.trainer.averaged_model(), True
                if fast is not None:
                    evaluation, improved = self._evaluated(model, "fast", fast)
                    is_due = improved or self._is_over() or step % self.intervals.validate_whole_steps == 0
                if is_due:
                    evaluation, is_best = self._evaluated(model, "whole", self.held_out.whole)
                status.draw(self.path)
        if ranks.any(is_best):
            self.save()
            if ranks.is_first:
                self.checkpoints.choose(step)
        return evaluation

    def _evaluated(self, model: HRM, kind: Kind, rows: batches.Batch) -> tuple[Evaluation, bool]:
        progress, recipe = self.trainer.progress, self.trainer.recipe
        before = self.history.best(kind, progress.step - 1)

        def raise_if_signalled() -> None:
            if self.stopped_by is not None:
                raise Stopped

        evaluation = evaluate(
            model,
            self.trainer.feed.puzzle,
            rows,
            loss=recipe.loss,
            identifiers=self.held_out.identifiers if kind == "whole" else (),
            between_batches=raise_if_signalled,
        )
        self.say(f"step {progress.step}: {evaluation.summary()}")
        self.history.add(kind, progress.step, progress.samples, evaluation, revealed=progress.curriculum_level)
        self.telemetry.validated(kind, evaluation)
        return evaluation, before is None or evaluation.score > before["score"]

    @contextmanager
    def _until_signalled(self) -> Generator[None]:
        """The first signal asks for a checkpoint and an end; a second one acts as it always does."""

        def stop(number: int, _frame: object) -> None:
            self.stopped_by = signal.Signals(number).name
            restore()
            self.say(f"{self.stopped_by}: this step is finished and saved; once more ends at once")

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            restore()


def run_of(plan: RunPlan, trainer: Trainer, intervals: Intervals, say: Say, *, wandb: bool) -> TrainingRun:
    """The run of a plan; its checkpoints name the data, the machine and the commit."""
    source = batches.open_source(plan.data, "test", trainer.feed.puzzle)
    rows = held_out(source, intervals.validation_puzzles or len(source), trainer.recipe.seed)
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    meta = {
        "puzzle": plan.recipe.puzzle,
        "data": plan.data.name,
        "data_fingerprint": datasets.fingerprint(plan.data),  # reads the whole data set once
        "hardware": plan.hardware.name,
        "commit": commit,
    }
    writers: list[telemetry.Writer] = []
    if trainer.ranks.is_first:
        writers.append(telemetry.TensorBoard(plan.run))
        if wandb:
            writers.append(telemetry.WeightsAndBiases(plan.run, json.loads(plan.to_json())))
    return TrainingRun(plan.run, trainer, rows, intervals, meta, writers, say)
