"""What a run tells while it goes on: one Moment every few steps, to its files, to TensorBoard and to W&B on request.

metrics.ndjson   one line for each Moment; `hrm-train status` reads it
board/           TensorBoard: train/* system/* val/*
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hrm_train import nvml
from hrm_train.evaluate import Evaluation
from hrm_train.loop import StepReport, Trainer
from hrm_train.meter import Reading
from hrm_train.watch import Watch, require_finite

METRICS = "metrics.ndjson"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where training stands; `train` holds means over the steps since the last moment, `system` the GPU's figures."""

    time: float
    step: int
    samples: int
    samples_per_s: float
    step_ms: float
    phase_ms: Mapping[str, float]
    train: Mapping[str, float]
    system: Mapping[str, float]


class Writer(Protocol):
    """Where figures go; `samples` is their place on the axis."""

    def write(self, figures: Mapping[str, float], samples: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and every resume would wait for it

        self._board = SummaryWriter(str(run / "board"))

    def write(self, figures: Mapping[str, float], samples: int) -> None:
        for name, value in figures.items():
            self._board.add_scalar(name, value, samples)

    def close(self) -> None:
        self._board.close()


def require_wandb() -> Any:
    """The module, or one sentence; asked before a run is begun."""
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("--wandb needs the package wandb; pip install 'hrm-edge[wandb]'") from error
    return wandb


class WeightsAndBiases:
    """Offline unless WANDB_MODE says otherwise: nothing leaves the machine until 'wandb sync' is called."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        identity = run / "wandb.id"  # a resumed run goes on in the same W&B run
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        self._run: Any = require_wandb().init(
            dir=str(run),
            name=run.name,
            id=identity.read_text(),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(settings),
        )

    def write(self, figures: Mapping[str, float], samples: int) -> None:
        self._run.log({**figures, "samples": samples})

    def close(self) -> None:
        self._run.finish()


class Telemetry:
    """Reads what the steps left on the device, warns, and passes it on."""

    def __init__(self, run: Path, trainer: Trainer, writers: Sequence[Writer], say: Callable[[str], None]) -> None:
        self._run, self._trainer, self._writers, self._say = run, trainer, writers, say
        self._gpu = nvml.open_gpu(trainer.device, say)
        self._watch = Watch()
        self._reports: list[StepReport] = []

    def add(self, report: StepReport) -> None:
        self._reports.append(report)

    def moment(self) -> Moment | None:
        """Everything since the last moment; None where no step was made. A value that is no number ends the run."""
        if not self._reports:
            return None
        series = _series(self._reports)
        self._reports = []
        self._require_finite(series)
        progress, reading = self._trainer.progress, self._trainer.meter.drain()
        system, throttled = self._system()
        for warning in self._watch.see(reading, series["loss"], throttled):
            self._say(f"warning: {warning}")
        moment = Moment(
            time=time.time(),
            step=progress.step,
            samples=progress.samples,
            samples_per_s=reading.samples_per_s,
            step_ms=reading.step_ms,
            phase_ms=reading.phase_ms,
            train={name: sum(values) / len(values) for name, values in series.items()}
            | {"revealed": progress.curriculum_level, "max_segments": self._trainer.max_segments},
            system=system,
        )
        if self._trainer.ranks.is_first:
            self._pass_on(moment, reading)
        return moment

    def validated(self, kind: str, evaluation: Evaluation) -> None:
        figures = {"segments": evaluation.segments, "halted_exact": evaluation.halted_exact, "loss": evaluation.loss}
        for segments in sorted({1, 4, len(evaluation.exact)}):
            figures |= {f"{name}_at_{segments}": value for name, value in evaluation.at(segments).items()}
        for writer in self._writers:
            writer.write({f"val/{kind}/{n}": value for n, value in figures.items()}, self._trainer.progress.samples)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _require_finite(self, series: Mapping[str, Sequence[float]]) -> None:
        last, trainer = self._trainer.progress.step, self._trainer
        length = len(series["loss"])
        for index in range(length):
            require_finite(
                {name: values[index] for name, values in series.items()},
                last - length + 1 + index,
                "the last checkpoint was written before it: go on from there with --init and "
                f"an lr below {trainer.recipe.lr}",
            )

    def _system(self) -> tuple[dict[str, float], tuple[str, ...]]:
        sample = self._gpu.sample() if self._gpu else None
        figures = nvml.memory(self._trainer.device) | (sample.scalars() if sample else {})
        return figures, sample.throttled if sample else ()

    def _pass_on(self, moment: Moment, reading: Reading) -> None:
        with (self._run / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_rounded(asdict(moment))) + "\n")
        figures = {f"train/{name}": value for name, value in moment.train.items()}
        figures |= {f"system/{name}": value for name, value in moment.system.items()}
        figures |= {f"system/{phase}_ms": value for phase, value in moment.phase_ms.items()}
        figures |= {"system/samples_per_s": moment.samples_per_s, "system/data_wait_share": reading.share("data")}
        for writer in self._writers:
            writer.write(figures, moment.samples)


def _series(reports: Sequence[StepReport]) -> dict[str, list[float]]:
    """Each figure's values, read from the device in one go for each figure."""
    names = vars(reports[0])
    columns = {name: [torch.as_tensor(getattr(report, name)).float() for report in reports] for name in names}
    return {name: torch.stack(values).tolist() for name, values in columns.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) and value < 1e6 else value
