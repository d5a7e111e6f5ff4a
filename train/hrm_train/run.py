"""A run on disk: what happens between the steps of a trainer. Read `TrainingRun.finish` first.

run.json   lock   step_N/   latest   best   metrics.ndjson   validation.ndjson   curve.png   board/
"""

import json
import signal
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hrm_host.machine import answer_of
from hrm_host.progress import Stages
from hrm_model import checkpoint
from hrm_model.hrm import HRM
from hrm_puzzles.data import datasets
from hrm_train import checkpoints, pictures, status, telemetry
from hrm_train.distributed import say
from hrm_train.evaluate import Evaluation, HeldOut, Kind, Stopped, evaluate, held_out
from hrm_train.loop import Trainer
from hrm_train.options import Intervals
from hrm_train.run_plan import RunPlan

SLOW_STEP_S = 30.0  # seconds between two lines while the first step runs


class TrainingRun:
    """Drives a trainer to its last sample.

    A signal ends it with a whole checkpoint; a value that is not finite ends it without one.
    """

    def __init__(
        self,
        path: Path,
        trainer: Trainer,
        held_out: HeldOut,
        intervals: Intervals,
        meta: Mapping[str, Any],
        writers: Sequence[telemetry.Writer],
    ) -> None:
        self.path = path
        self.trainer = trainer
        self.held_out = held_out
        self.intervals = intervals
        self.meta = meta
        self.stopped_by: str | None = None
        self._stop = threading.Event()
        self.telemetry = telemetry.Telemetry(path, trainer, writers)
        self._began_s = time.monotonic()
        self._saved_at = self._began_s
        self._latest_figures = ""

    def finish(self, stages: Stages) -> None:
        """Trains to `total_samples`, or until a signal comes.

        The caller must hold the run's lock (`sole_writer`), since files of killed processes are
        removed.
        """
        is_stopping = False
        with self._until_signalled():
            self._catch_up()
            while not self._is_over() and not is_stopping:
                with self._announcing_a_first_step(stages):
                    self.telemetry.add(self.trainer.step())
                self._report(stages)
                if self._is_over() or self._every(self.intervals.validate_steps):
                    self._validate()
                is_stopping = self._agreed(self.stopped_by is not None)
                if self._is_save_due() or self._is_over() or is_stopping:
                    self.save()
            self.telemetry.close()

    @contextmanager
    def _announcing_a_first_step(self, stages: Stages) -> Generator[None]:
        """Says every half minute that the first step still runs; does nothing for later ones."""
        if self._latest_figures:
            yield
            return
        self._show(stages, "the first step also compiles and warms up")
        ended = threading.Event()
        threading.Thread(target=self._say_slow, args=[ended], daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _say_slow(self, ended: threading.Event) -> None:
        began_s = time.monotonic()
        while not ended.wait(SLOW_STEP_S):
            seconds = time.monotonic() - began_s
            say(f"the first step still runs after {seconds:.0f} s; later steps are faster")

    def _report(self, stages: Stages) -> None:
        if self._every(self.intervals.log_steps) or not self._latest_figures:
            row = self.telemetry.flush()
            if row is not None:
                self._latest_figures = status.figures_line(row, status.TRAINING)
        self._show(stages, self._latest_figures)

    def _show(self, stages: Stages, note: str) -> None:
        progress = self.trainer.progress
        stages.show("training", progress.samples, self.trainer.recipe.total_samples, note)

    def _is_save_due(self) -> bool:
        age_s = time.monotonic() - self._saved_at
        is_late = age_s >= 60 * self.intervals.checkpoint_minutes
        return self._every(self.intervals.checkpoint_steps) or self._agreed(is_late)

    def save(self) -> None:
        """Writes `step_N` and points `latest` to it.

        Raises FloatingPointError if a value was not finite.
        """
        self.telemetry.flush()
        trainer = self.trainer
        ranks = trainer.ranks
        step = trainer.progress.step
        write = partial(trainer.save, meta=self._meta_now())
        with trainer.meter.aside():
            # Never rewrite what a resume would read.
            is_written = checkpoints.named(self.path / "latest") == self.path / f"step_{step}"
            if ranks.any(ranks.is_first and not is_written):
                if ranks.is_first:
                    checkpoints.save(self.path, step, write, keep=self.intervals.keep)
                else:
                    write(self.path)
        self._saved_at = time.monotonic()

    def _meta_now(self) -> dict[str, Any]:
        progress = self.trainer.progress
        best = status.best_validation(self.path, "whole", progress.step)
        rows = status.validations(self.path, "whole", progress.step)
        lowest = min(rows, key=lambda row: row["loss"], default=None)
        return {
            **self.meta,
            **vars(progress),
            "best_score": best and best["score"],
            "best_step": best and best["step"],
            "best_epoch": best and best.get("passes"),
            "best_loss": lowest and lowest["loss"],
            "best_loss_step": lowest and lowest["step"],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _is_over(self) -> bool:
        return self.trainer.progress.samples >= self.trainer.recipe.total_samples

    def _every(self, steps: int) -> bool:
        return self.trainer.progress.step % steps == 0

    def _agreed(self, here: bool) -> bool:
        """Whether `here` is true on any rank. Ranks vote only at report steps: a vote waits."""
        ranks = self.trainer.ranks
        if ranks.world == 1:
            return here
        return self._every(self.intervals.log_steps) and ranks.any(here)

    def _catch_up(self) -> None:
        """Finishes what a killed process left undone: points `best`, and validates if it is due."""
        step = self.trainer.progress.step
        ranks = self.trainer.ranks
        is_due = step > 0 and (self._is_over() or self._every(self.intervals.validate_steps))
        if ranks.is_first:
            checkpoints.sweep(self.path)
            best = status.best_validation(self.path, "whole", step)
            if best is not None and (self.path / f"step_{best['step']}").exists():
                checkpoints.choose(self.path, best["step"], keep=self.intervals.keep)
            is_due &= all(row["step"] != step for row in status.validations(self.path))
        if ranks.any(ranks.is_first and is_due):
            self._validate()

    def _validate(self) -> None:
        """Runs the due evaluation; saves if the whole set is the best yet. A signal ends it."""
        step = self.trainer.progress.step
        fast = self.held_out.fast
        evaluation = None
        is_best = False
        with self.trainer.meter.aside(), suppress(Stopped):
            model = self.trainer.averaged_model()
            is_whole_due = True
            if fast is not None:
                evaluation, is_better = self._evaluated(model, "fast", fast)
                is_whole_step = self._every(self.intervals.validate_whole_steps)
                is_whole_due = is_better or is_whole_step or self._is_over()
            if is_whole_due:
                evaluation, is_best = self._evaluated(model, "whole", self.held_out.whole)
            if evaluation is not None and self.trainer.ranks.is_first:
                say(evaluation.row(step, time.monotonic() - self._began_s))
                with telemetry.going_on_without("curve.png"):
                    pictures.draw_curve(self.path)
                self.telemetry.show(evaluation)
        if is_best:
            self.save()
            if self.trainer.ranks.is_first:
                checkpoints.choose(self.path, step, keep=self.intervals.keep)

    def _evaluated(self, model: HRM, kind: Kind, rows: datasets.Batch) -> tuple[Evaluation, bool]:
        """The evaluation, and whether it is better than all earlier ones of its kind."""
        identifiers: Sequence[str] = ()
        if kind == "whole":
            identifiers = self.held_out.identifiers
        evaluation = evaluate(
            model,
            self.trainer.feed.puzzle,
            rows,
            loss=self.trainer.recipe.loss,
            identifiers=identifiers,
            stop=self._stop,
        )
        record = partial(self._record, kind, evaluation)
        return evaluation, self.trainer.ranks.of_first(record)

    def _record(self, kind: Kind, evaluation: Evaluation) -> bool:
        """Writes an evaluation down; returns whether it is better than all earlier ones."""
        progress = self.trainer.progress
        before = status.best_validation(self.path, kind, progress.step - 1)
        passes = self.trainer.passes
        row = status.add_validation(self.path, kind, progress, passes, evaluation)
        self.telemetry.validated(kind, evaluation)
        return before is None or status.worth(row) > status.worth(before)

    @contextmanager
    def _until_signalled(self) -> Generator[None]:
        """The first signal ends the run after this step; a second one acts as usual."""

        def stop(number: int, _frame: object) -> None:
            self.stopped_by = signal.Signals(number).name
            self._stop.set()
            restore()
            say(f"{self.stopped_by}: finishing and saving this step; repeat it to end now")

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            restore()


def run_of(plan: RunPlan, trainer: Trainer, *, wandb: bool) -> TrainingRun:
    """Returns the run of a plan; its checkpoints name the data, the machine and the commit."""
    source = datasets.open_split(plan.data, "test", plan.puzzle)
    known = trainer.model.config.num_puzzle_ids
    if source.num_puzzle_ids != known:
        raise datasets.DatasetError(
            f"{plan.data} has {source.num_puzzle_ids} puzzle ids in test, but {known} in train; "
            "build the data set again"
        )
    num_puzzles = plan.intervals.validation_puzzles or len(source)
    rows = held_out(source, num_puzzles, trainer.recipe.seed)
    git = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD")
    commit = answer_of(git) or "unknown"
    meta: dict[str, Any] = {
        "puzzle": plan.recipe.puzzle,
        "data": plan.data.name,
        "hardware": plan.hardware.name,
        "commit": commit.strip(),
    }
    if trainer.model.config.num_puzzle_ids > 1:
        meta[checkpoint.PUZZLE_IDS] = source.identifiers()
    writers: list[telemetry.Writer] = []
    if trainer.ranks.is_first:
        meta["data_fingerprint"] = datasets.fingerprint(plan.data)
        writers.append(telemetry.TensorBoard(plan.run))
        if wandb:
            settings = json.loads(plan.to_json())
            writers.append(telemetry.WeightsAndBiases(plan.run, settings))
    return TrainingRun(plan.run, trainer, rows, plan.intervals, meta, writers)
