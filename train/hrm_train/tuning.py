"""Tries on this machine which micro-batch is fastest."""

import math
import time
from dataclasses import dataclass, field, replace

import torch

from hrm_train import distributed, memory
from hrm_train.hardware import Say
from hrm_train.loop import Trainer
from hrm_train.run_plan import RunPlan
from hrm_train.start import trainer_from

FACTORS = (0.5, 1, 2, 4)  # factors of the wanted micro-batch to try
REPEATS = 3  # trials per micro-batch; the first one warms up
MIB = 1 << 20


def tuned(plan: RunPlan, most: int, say: Say) -> RunPlan:
    """Returns the plan with the fastest micro-batch.

    The batch may grow up to `most` times. If the micro-batch is larger than the batch, it
    becomes the batch, and the learning rates grow with it.
    """
    recipe = replace(plan.recipe, batch_size=most * plan.recipe.batch_size)
    trainer = trainer_from(replace(plan, recipe=recipe), say)
    rows = fastest(trainer, plan.micro_batch, say)
    plan = replace(plan, hardware=replace(plan.hardware, micro_batch=rows))
    batch_size = plan.recipe.batch_size
    grown = rows * distributed.ranks().world
    if grown <= batch_size:
        return plan
    say(
        f"the batch grows from {batch_size} to {grown}, "
        f"and the learning rates {grown / batch_size:.3g} times with it"
    )
    base_batch = plan.recipe.base_batch or batch_size
    return replace(plan, recipe=replace(plan.recipe, batch_size=grown, base_batch=base_batch))


def fastest(trainer: Trainer, wanted: int, say: Say, limit: int | None = None) -> int:
    """Returns the fastest of 0.5, 1, 2 and 4 times `wanted` rows that fits into memory.

    A micro-batch fits if it fills at most FILLED of `limit` bytes (default: the device's
    memory). Each one runs real windows, forward and backward, with all rows fresh: no step takes
    more. If none fits, smaller ones are tried. The trainer's state is lost.
    """
    if limit is None:
        limit = memory.limit_bytes(trainer.device)
    trials = Trials(trainer, limit, say)
    num_slots = len(trainer.slots)
    for rows in sorted({_at_most(num_slots, factor * wanted) for factor in FACTORS}):
        if not trials.fits(rows):
            break
    while not trials.speeds:
        if trainer.micro_batch == 1:
            raise ValueError(
                f"not even one row fits into {memory.FILLED:.0%} of {limit / MIB:.0f} MiB; "
                "choose a smaller --preset"
            )
        trials.fits(trainer.micro_batch // 2)
    best = trials.fastest()
    num_parts = -(-num_slots // best)
    say(f"chosen: micro-batches of {best} rows, {num_parts} for each update")
    return best


def _at_most(most: int, rows: float) -> int:
    return min(most, max(1, int(rows)))


@dataclass
class Trials:
    """Micro-batches that were tried on one trainer."""

    trainer: Trainer
    limit: int  # bytes of memory
    say: Say
    speeds: dict[int, float] = field(default_factory=dict[int, float])
    """Samples per second of the micro-batches that fit."""

    def fits(self, rows: int) -> bool:
        """Tries one micro-batch and keeps its speed if it fits."""
        trainer = self.trainer
        trainer.regroup(rows)
        memory.restart_peak(trainer.device)
        try:
            seconds = _seconds_of_window(trainer)
        except RuntimeError as error:
            if not memory.is_out_of_memory(error):
                raise
            self.say(f"micro-batch {trainer.micro_batch}: out of memory, too much")
            return False
        samples_per_s = trainer.micro_batch * trainer.recipe.window / seconds
        peak = memory.peak_bytes(trainer.device)
        figures = f"{samples_per_s:.1f} samples/s, peak {peak / MIB:.0f} MiB"
        if peak > memory.FILLED * self.limit:
            self.say(f"micro-batch {trainer.micro_batch}: {figures}, too much")
            return False
        self.say(f"micro-batch {trainer.micro_batch}: {figures}")
        self.speeds[trainer.micro_batch] = samples_per_s
        return True

    def fastest(self) -> int:
        return max(self.speeds, key=lambda rows: self.speeds[rows])


def _seconds_of_window(trainer: Trainer) -> float:
    """The shortest time of a window, in REPEATS trials."""
    shortest = math.inf
    for _ in range(REPEATS):
        begin = time.perf_counter()
        trainer.rehearse()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest
