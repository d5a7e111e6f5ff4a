"""Report a run every few steps: to its files, to TensorBoard, and to W&B on request. Warn of
trouble. A report that fails never ends the run.

metrics.ndjson   a row every few steps (`status.py`); `hrm-train status` reads it
board/           TensorBoard: train/* system/* val/*
"""

import math
import os
import secrets
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_host import system
from hrm_train import distributed, evaluate, loop, meter, pictures, status


class TensorBoard:
    def __init__(self, run: Path) -> None:
        self._run = run

    @cached_property
    def _board(self) -> Any:
        # Slow to import; every resume would wait for it.
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._run / "board"))

    def write(self, figures: Mapping[str, float], samples: int) -> None:
        for name, value in figures.items():
            self._board.add_scalar(name, value, samples)

    def show(self, boards_NYXC: NDArray[np.uint8], samples: int) -> None:
        self._board.add_images("val/boards", boards_NYXC, samples, dataformats="NHWC")

    def close(self) -> None:
        self._board.close()


def require_wandb() -> Any:
    """Returns what starts its runs; raises ValueError if the package is missing."""
    try:
        from wandb import init  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            "--wandb needs the package wandb; pip install 'hrm-edge[wandb]'"
        ) from error
    return init


class WeightsAndBiases:
    """Offline unless WANDB_MODE is set: nothing leaves the machine before 'wandb sync'."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        identity = run / "wandb.id"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        mode = os.environ.get("WANDB_MODE", "offline")
        joined = {"id": identity.read_text(), "resume": "allow"}
        if mode == "offline":
            # 'wandb sync' of a second run with the same id replaces the history of the first.
            joined = {"group": identity.read_text()}
        start = require_wandb()
        try:
            self._run: Any = start(
                dir=str(run), name=run.name, mode=mode, config=dict(settings), **joined
            )
        except Exception as error:  # it has errors of its own
            raise ValueError(f"W&B does not start ({error}); repair it or omit --wandb") from error

    def write(self, figures: Mapping[str, float], samples: int) -> None:
        self._run.log({**figures, "samples": samples})

    def close(self) -> None:
        self._run.finish()


Writer = TensorBoard | WeightsAndBiases


@contextmanager
def going_on_without(report: str) -> Generator[None]:
    """Warns if a report fails; the libraries of reports may fail in any way."""
    try:
        yield
    except Exception as error:
        distributed.say(f"warning: training goes on without {report} ({error})")


class Telemetry:
    """Reads the figures that the steps left on the device, warns, and passes them on."""

    def __init__(
        self,
        run: Path,
        trainer: loop.Trainer,
        writers: Sequence[Writer],
    ) -> None:
        self._run = run
        self._trainer = trainer
        self._writers = writers
        self._recent_losses: deque[float] = deque(maxlen=USUAL_LOSSES)
        self._reports: list[loop.StepReport] = []

    def add(self, report: loop.StepReport) -> None:
        self._reports.append(report)

    def flush(self) -> status.Row | None:
        """Returns the row since the last one, or None without a step.

        Raises FloatingPointError if a value is not finite.
        """
        if not self._reports:
            return None
        series = _series(self._reports)
        self._reports = []
        trainer = self._trainer
        progress = trainer.progress
        advice = f"continue from there with --init and an lr below {trainer.recipe.lr}"
        last = f"the last checkpoint was written before it: {advice}"
        require_finite(series, progress.step, last)
        means = self._means(series)
        row: status.Row = {
            "time": time.time(),
            **vars(progress),
            "passes": trainer.passes,
            **trainer.meter.drain(),
            "train": means,
            "system": self._machine(),
        }
        warning = warning_of_a_jump(self._recent_losses, means["loss"])
        if warning is not None:
            distributed.say(f"warning: {warning}")
        if trainer.ranks.is_first:
            status.append_line(self._run / status.METRICS, row)
            self._write(status.figures_of(row))
        return row

    def _means(self, series: Mapping[str, Sequence[float]]) -> dict[str, float]:
        num_steps = len(series["halted"])
        means = {name: sum(values) / num_steps for name, values in series.items()}
        means["segments"] /= max(1 / num_steps, means["halted"])  # per puzzle that halted
        means["max_segments"] = self._trainer.max_segments
        return means

    def _machine(self) -> dict[str, float]:
        found = meter.gpu_figures(self._trainer.device)
        load = system.load_average()
        if load is not None:
            found["cpu_load"] = load
        return found

    def validated(self, kind: str, evaluation: evaluate.Evaluation) -> None:
        """Passes a validation on: its curves after 1, 4 and all segments."""
        found = {
            "segments": evaluation.segments,
            "halted_exact": evaluation.halted_exact,
            "answer_loss": evaluation.loss,
        }
        for k, share in evaluation.pass_at.items():
            found[f"pass_at_{k}"] = share
        num_segments = len(evaluation.exact)
        for name in evaluate.CURVES:
            curve = getattr(evaluation, name)
            for count in (1, 4, num_segments):
                found[f"{name}_at_{count}"] = curve[min(count, num_segments) - 1]
        self._write({f"val/{kind}/{name}": value for name, value in found.items()})

    def show(self, evaluation: evaluate.Evaluation) -> None:
        """Adds a picture of right and wrong boards to TensorBoard."""
        puzzle = self._trainer.feed.puzzle
        if math.prod(puzzle.geometry.board) != puzzle.seq_len:
            return
        boards = pictures.boards(puzzle, evaluation.rows, evaluation.answers_BT)
        for writer in self._writers:
            if isinstance(writer, TensorBoard):
                with going_on_without("pictures"):
                    writer.show(boards, self._trainer.progress.samples)

    def _write(self, named: Mapping[str, float]) -> None:
        working: list[Writer] = []
        for writer in self._writers:
            with going_on_without(type(writer).__name__):
                writer.write(named, self._trainer.progress.samples)
                working.append(writer)
        self._writers = working

    def close(self) -> None:
        for writer in self._writers:
            with going_on_without(type(writer).__name__):
                writer.close()


def _series(reports: Sequence[loop.StepReport]) -> dict[str, list[float]]:
    """The values of each figure. Each figure takes one read from the device."""
    series: dict[str, list[float]] = {}
    for name in vars(reports[0]):
        values = [torch.as_tensor(getattr(report, name)).float() for report in reports]
        series[name] = torch.stack(values).tolist()
    return series


SPIKE = 2.0  # a loss this many times the usual one is reported
USUAL_LOSSES = 20  # readings; the usual loss is their median


def warning_of_a_jump(recent: deque[float], loss: float) -> str | None:
    """A warning if a loss is far above the recent ones, which then begin anew.

    `recent` collects the last losses; nothing is compared until it is full.
    """
    usual = math.inf
    if len(recent) == recent.maxlen:
        usual = median(recent)
    if loss <= SPIKE * usual:
        recent.append(loss)
        return None
    recent.clear()
    return (
        f"the loss jumped from {usual:.3g} to {loss:.3g}; if it stays there, start another run "
        "with --init from an earlier checkpoint and a lower lr or more warmup_samples"
    )


def require_finite(series: Mapping[str, Sequence[float]], last_step: int, advice: str) -> None:
    """Raises FloatingPointError for the first value that is not finite.

    Each series ends with the value of the last step.
    """
    num_steps = len(next(iter(series.values())))
    first_step = last_step + 1 - num_steps
    for step in range(num_steps):
        for name, values in series.items():
            if not math.isfinite(values[step]):
                raise FloatingPointError(
                    f"{name} is {values[step]} at step {first_step + step}, "
                    f"so training cannot continue; {advice}"
                )
