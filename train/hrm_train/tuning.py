"""How many rows to learn from at once on this machine: tried, not guessed. Read `fastest`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hrm_train.loop import Trainer
from hrm_train.memory import is_out_of_memory, limit_bytes, peak_bytes, restart_peak

FACTORS = (0.5, 1, 2, 4)
TARGET = 0.9
"""Share of the device's memory that a micro-batch may fill: the rest is for fragments and whatever else runs."""
REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One micro-batch that was tried; no speed where it was out of memory."""

    micro_batch: int
    samples_per_s: float
    peak_bytes: int
    fits: bool

    def __str__(self) -> str:
        outcome = f"{self.samples_per_s:.1f} samples/s, peak {self.peak_bytes / 2**20:.0f} MiB"
        verdict = outcome if self.samples_per_s else "out of memory"
        return f"micro-batch {self.micro_batch}: {verdict}{'' if self.fits else ', too much'}"


def fastest(trainer: Trainer, wanted: int, say: Callable[[str], None], limit: int | None = None) -> int:
    """The fastest of 0.5, 1, 2 and 4 times `wanted` rows that fills at most TARGET of `limit` bytes (the device's own).

    Each is tried by real windows, forward and backward, in which every row is fresh: the most a step can take. Where
    none fits, smaller ones are tried. The trainer's state is spent on it: use one for this alone.
    """
    limit = limit_bytes(trainer.device) if limit is None else limit
    most = len(trainer.slots)
    trials: list[Trial] = []
    for rows in sorted({min(most, max(1, int(factor * wanted))) for factor in FACTORS}):
        trials.append(_tried(trainer, rows, limit, say))
        if not trials[-1].fits:
            break
    while not any(trial.fits for trial in trials):
        rows = min(trial.micro_batch for trial in trials)
        if rows == 1:
            raise ValueError(
                f"not even one row fits into {TARGET:.0%} of {limit / 2**20:.0f} MiB; choose a smaller --preset"
            )
        trials.append(_tried(trainer, rows // 2, limit, say))
    best = max((trial for trial in trials if trial.fits), key=lambda trial: trial.samples_per_s)
    say(f"chosen: micro-batches of {best.micro_batch} rows, {-(-most // best.micro_batch)} for each update")
    return best.micro_batch


def _tried(trainer: Trainer, rows: int, limit: int, say: Callable[[str], None]) -> Trial:
    trainer.regroup(rows)
    restart_peak(trainer.device)
    try:
        seconds = min(_seconds(trainer) for _ in range(REPEATS))  # the first one also warms up
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        seconds = 0.0
    peak = peak_bytes(trainer.device)
    samples_per_s = trainer.micro_batch * trainer.recipe.window / seconds if seconds else 0.0
    fits = bool(seconds) and peak <= TARGET * limit
    trial = Trial(micro_batch=trainer.micro_batch, samples_per_s=samples_per_s, peak_bytes=peak, fits=fits)
    say(str(trial))
    return trial


def _seconds(trainer: Trainer) -> float:
    begin = time.perf_counter()
    trainer.rehearse()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
