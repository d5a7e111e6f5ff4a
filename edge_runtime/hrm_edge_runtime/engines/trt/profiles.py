"""The batch sizes that an engine is built for, which depend on the model alone.

Every command that needs up to 16 slots builds and opens the same engine. A small model has one
profile for all batch sizes: the builder takes a third of the time and the plan a quarter of the
bytes, with the same kernels. A large model has a profile per batch size, since the narrowest
profile has the best kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import MAX_SLOTS_CARD, usual_slots

FEW_WEIGHTS = 1_000_000
BEST_ROWS = 8  # the batch size whose time the builder minimizes
WEIGHT_BYTES = {"fp16": 2, "fp32": 4, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fewest, best and most rows of an optimization profile."""

    min_rows: int
    best_rows: int
    max_rows: int

    @classmethod
    def fixed(cls, num_rows: int) -> Profile:
        return cls(min_rows=num_rows, best_rows=num_rows, max_rows=num_rows)


def is_small(bundle: Bundle) -> bool:
    """Whether the model has few weights, judged by the size of a step graph."""
    for precision, weight_bytes in WEIGHT_BYTES.items():
        file = bundle.manifest.precisions.get(precision)
        if file is not None:
            num_weights = bundle.manifest.files[file].size_bytes // weight_bytes
            return num_weights < FEW_WEIGHTS
    return False


def slots_to_build(bundle: Bundle, num_slots: int) -> int:
    """The slots of the engine that serves `num_slots`: the usual number, 64, or `num_slots`."""
    for size in (usual_slots(bundle), MAX_SLOTS_CARD):
        if num_slots <= size:
            return size
    return num_slots


def buckets_for(num_slots: int) -> tuple[int, ...]:
    """The batch sizes that run: the powers of two below `num_slots`, and itself."""
    buckets: list[int] = []
    size = 1
    while size < num_slots:
        buckets.append(size)
        size *= 2
    return (*buckets, num_slots)


def profiles_for(bundle: Bundle, buckets: tuple[int, ...]) -> tuple[Profile, ...]:
    """One profile for all buckets of a small model, else one for each bucket."""
    if not is_small(bundle):
        return tuple(Profile.fixed(bucket) for bucket in buckets)
    most_rows = buckets[-1]
    best_rows = min(BEST_ROWS, most_rows)
    return (Profile(min_rows=1, best_rows=best_rows, max_rows=most_rows),)
