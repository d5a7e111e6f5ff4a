"""Chooses a micro-batch: the largest that the estimate allows, or the fastest on this machine."""

import bisect
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from hrm_host.memory import MIB
from hrm_train import distributed, memory
from hrm_train.distributed import say
from hrm_train.hardware import GIGABYTE
from hrm_train.loop import Trainer
from hrm_train.memory import FILLED
from hrm_train.run_plan import RunPlan, trainer_from


def filled(plan: RunPlan, share: float) -> RunPlan:
    """The plan with the largest micro-batch whose estimate fits a share of the card's memory.

    The batch size and the learning rates do not change. Raises ValueError if the machine's memory
    is unknown.
    """
    machine = plan.hardware
    if not machine.memory_gb:
        raise ValueError(
            f"--fill needs a card of known memory, and {machine.name} is not one; omit it"
        )
    limit = share * machine.memory_gb * GIGABYTE

    def exceeds(rows: int) -> bool:
        return plan.with_micro_batch(rows).memory().total > limit

    num_slots = len(distributed.ranks().slots(plan.recipe.batch_size))
    rows = bisect.bisect_right(range(1, num_slots + 1), False, key=exceeds)
    return plan.with_micro_batch(max(1, rows))


def tuned(plan: RunPlan, most: int) -> RunPlan:
    """Returns the plan with the fastest micro-batch.

    The batch may grow up to `most` times. If the micro-batch is larger than the batch, it
    becomes the batch, and the learning rates grow with it.
    """
    recipe = replace(plan.recipe, batch_size=most * plan.recipe.batch_size)
    grown_plan = replace(plan, recipe=recipe)
    trainer = trainer_from(grown_plan)

    def needed_bytes(rows: int) -> int:
        return grown_plan.with_micro_batch(rows).memory().total

    limit = memory.limit_bytes(trainer.device)
    rows = fastest(trainer, plan.micro_batch, needed_bytes, limit)
    plan = plan.with_micro_batch(rows)
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


def fastest(trainer: Trainer, wanted: int, needed_bytes: Callable[[int], int], limit: int) -> int:
    """Returns the fastest of 0.5, 1, 2 and 4 times `wanted` rows that fits into memory.

    A micro-batch fits if the bytes that it needs fill at most FILLED of `limit`, and its windows
    run. Each one runs real windows, forward and backward, with all rows fresh: no step takes
    more. If none fits, smaller ones are tried. The trainer's state is lost.
    """
    speeds: dict[int, float] = {}

    def fits(rows: int) -> bool:
        needed = f"micro-batch {rows}: calculated {needed_bytes(rows) / MIB:.0f} MiB"
        speed = 0.0
        if needed_bytes(rows) <= FILLED * limit:
            trainer.regroup(rows)
            speed = _samples_per_s(trainer)
        if not speed:
            say(f"{needed}, too much")
            return False
        say(f"{needed}, {speed:.1f} samples/s")
        speeds[trainer.micro_batch] = speed
        return True

    num_slots = len(trainer.slots)
    factors = (0.5, 1, 2, 4)
    sizes = sorted({min(num_slots, max(1, int(factor * wanted))) for factor in factors})
    for rows in sizes:
        if not fits(rows):
            break
    rows = sizes[0]
    while not speeds:
        if rows == 1:
            raise ValueError(
                f"not even one row fits into {FILLED:.0%} of {limit / MIB:.0f} MiB; "
                "choose a smaller --preset"
            )
        rows = rows // 2
        fits(rows)
    best = max(speeds, key=lambda rows: speeds[rows])
    num_parts = -(-num_slots // best)
    say(f"chosen: micro-batches of {best} rows, {num_parts} for each update")
    return best


def _samples_per_s(trainer: Trainer) -> float:
    """The speed of the fastest of three windows; 0 if memory runs out."""
    shortest_s = math.inf
    try:
        for _ in range(3):  # the first one warms up
            begin_s = time.perf_counter()
            trainer.rehearse()
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            shortest_s = min(shortest_s, time.perf_counter() - begin_s)
    except RuntimeError as error:
        if not memory.is_out_of_memory(error):
            raise
        return 0.0
    return trainer.micro_batch * trainer.recipe.window / shortest_s
