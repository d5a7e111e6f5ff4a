"""What a run reports: a MetricsRow every few steps, to its files, to TensorBoard and to W&B on request; warnings.

metrics.ndjson   one line for each MetricsRow; `hrm-train status` reads it
board/           TensorBoard: train/* system/* val/*
"""

import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hrm_host import system
from hrm_train import evaluate, hardware, loop, meter, status


@dataclass(frozen=True, kw_only=True)
class MetricsRow(meter.Reading):
    time: float
    step: int
    samples: int
    train: Mapping[str, float]  # means over the steps since the last row
    system: Mapping[str, float]  # the GPU's figures

    def summary(self) -> str:
        parts = [
            f"{self.samples_per_s:.0f} samples/s",
            f"loss {self.train['loss']:.3f} (answers {self.train['answer_loss']:.3f})",
            f"exact {100 * self.train['exact']:.0f} %",
            f"cells {100 * self.train['cells']:.1f} %",
            f"lr {self.train['lr']:.3g}",
            f"data wait {100 * self.share('data'):.0f} %",
            f"{self.train['segments']:.1f} of {self.train['max_segments']:.0f} segments",
        ]
        if self.train.get("revealed"):
            parts.append(f"{self.train['revealed']:.0f} cells revealed")
        if "gpu_utilisation_percent" in self.system:
            parts.append(f"GPU {self.system['gpu_utilisation_percent']:.0f} %")
        return ", ".join(parts)


class TensorBoard:
    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import (
            SummaryWriter,  # slow to import, and every resume would wait for it
        )

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
        name, mode = identity.read_text(), os.environ.get("WANDB_MODE", "offline")
        self._run: Any = require_wandb().init(
            dir=str(run), name=run.name, id=name, resume="allow", mode=mode, config=dict(settings)
        )

    def write(self, figures: Mapping[str, float], samples: int) -> None:
        self._run.log({**figures, "samples": samples})

    def close(self) -> None:
        self._run.finish()


Writer = TensorBoard | WeightsAndBiases


class Telemetry:
    """Reads what the steps left on the device, warns, and passes it on."""

    def __init__(self, run: Path, trainer: loop.Trainer, writers: Sequence[Writer], say: hardware.Say) -> None:
        self._run, self._trainer, self._writers, self._say = run, trainer, writers, say
        self._gpu = meter.open_gpu(trainer.device, say)
        self._monitor = AnomalyMonitor()
        self._reports: list[loop.StepReport] = []

    def add(self, report: loop.StepReport) -> None:
        self._reports.append(report)

    def flush(self) -> MetricsRow | None:
        """The row since the last one; None where no step was made. A value that is not finite ends the run."""
        if not self._reports:
            return None
        # each figure is read from the device in one go
        series: dict[str, list[float]] = {}
        for name in vars(self._reports[0]):
            values = [torch.as_tensor(getattr(report, name)).float() for report in self._reports]
            series[name] = torch.stack(values).tolist()
        self._reports = []
        trainer = self._trainer
        progress, reading = trainer.progress, trainer.meter.drain()
        advice = f"go on from there with --init and an lr below {trainer.recipe.lr}"
        require_finite(series, progress.step, f"the last checkpoint was written before it: {advice}")
        throttled = self._gpu.throttled() if self._gpu else ()
        for warning in self._monitor.see(reading, throttled):
            self._say(f"warning: {warning}")
        machine = {**self._gpu.sample(), "gpu_throttled": float(bool(throttled))} if self._gpu else {}
        if (load := system.load_average()) is not None:
            machine["cpu_load"] = load
        means = {name: sum(values) / len(values) for name, values in series.items()}
        means["segments"] /= max(1 / len(series["halted"]), means["halted"])  # of a puzzle that halted
        row = MetricsRow(
            time=time.time(),
            step=progress.step,
            samples=progress.samples,
            **vars(reading),
            train={**means, "revealed": progress.curriculum_level, "max_segments": trainer.max_segments},
            system={**meter.gpu_memory(trainer.device), **machine},
        )
        if trainer.ranks.is_first:
            self._write(row)
        return row

    def validated(self, kind: str, evaluation: evaluate.Evaluation) -> None:
        figures = {name: getattr(evaluation, name) for name in ("segments", "halted_exact")}
        figures |= {f"pass_at_{k}": share for k, share in evaluation.pass_at.items()}
        figures["answer_loss"], most = evaluation.loss, len(evaluation.exact)
        for count in sorted({1, 4, most}):
            last = min(count, most) - 1
            figures |= {f"{name}_at_{count}": getattr(evaluation, name)[last] for name in evaluate.CURVES}
        for writer in self._writers:
            writer.write({f"val/{kind}/{n}": value for n, value in figures.items()}, self._trainer.progress.samples)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _write(self, row: MetricsRow) -> None:
        status.append_line(self._run / status.METRICS, asdict(row))
        figures = {f"train/{name}": value for name, value in row.train.items()}
        figures |= {f"system/{name}": value for name, value in row.system.items()}
        figures |= {f"system/{phase}_ms": value for phase, value in row.phase_ms.items()}
        measured = ("samples_per_s", "step_ms", "step_p50_ms", "step_p99_ms", "cpu_cores")
        figures |= {f"system/{name}": getattr(row, name) for name in measured}
        figures["system/data_wait_share"] = row.share("data")
        for writer in self._writers:
            writer.write(figures, row.samples)


STARVED = 0.15  # share of a step spent waiting for rows above which the data is the bottleneck
LASTING = 3  # readings in a row that count as a state: the first carries the warm-up, one may be an accident

THROTTLED = {
    "power": "the GPU is held at its power limit; raise it with 'nvidia-smi -pl WATTS' or accept the lower clock",
    "thermal": "the GPU slows down because it is hot; clear its air path, raise its fan speed or lower its power limit",
    "brake": "the GPU is braked by its power supply; check the power connectors and the supply's rating",
    "hardware": "the GPU slows itself down (heat or power supply); look at 'nvidia-smi -q -d PERFORMANCE'",
}


class AnomalyMonitor:
    """Finds signs of trouble in the readings of a run; each is said once, with what to do. Pure logic."""

    def __init__(self) -> None:
        self._lasted: Counter[str] = Counter()
        self._said: set[str] = set()

    def see(self, reading: meter.Reading, throttled: Sequence[str]) -> list[str]:
        """The warnings that are new after this reading; `throttled` holds keys of THROTTLED."""
        now = {name: sentence for name, sentence in THROTTLED.items() if name in throttled}
        if (wait := reading.share("data")) > STARVED:
            now["data"] = (
                f"training waits for rows during {100 * wait:.0f} % of each step; give more threads to them "
                "(--set workers=N), or put the data set on a faster disk"
            )
        self._lasted = Counter({name: self._lasted[name] + 1 for name in now})
        lasting = {name: now[name] for name, count in self._lasted.items() if count >= LASTING}
        new = [sentence for name, sentence in lasting.items() if name not in self._said]
        self._said |= lasting.keys()
        return new


def require_finite(series: Mapping[str, Sequence[float]], last_step: int, advice: str) -> None:
    """Raises FloatingPointError for the first value that is not finite; each series ends with the last step's value."""
    first_step = last_step + 1 - len(next(iter(series.values())))
    for step, values in enumerate(zip(*series.values(), strict=True), first_step):
        for name, value in zip(series, values, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} at step {step}, training cannot go on; {advice}")
