"""Short trainings as one of several ranks; the first prints what it found."""

import dataclasses
import json
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from train_tools import PUZZLE, SIZES, losses, small_trainer, training_run

from hrm_host.progress import Stages
from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_puzzles.data.datasets import open_split
from hrm_train.batches import Batch, SplitSource
from hrm_train.distributed import joined
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe
from hrm_train.status import VALIDATIONS, read_lines

NUM_IDS = 5
STEPS = 20
SAVED_AT = 18
ROW_S = 0.08  # for each row and segment: 13 s for all 40 puzzles, 6 s for each share
LIMIT_S = 12
CONFIG = dataclasses.replace(SIZES, num_puzzle_ids=NUM_IDS, high_cycles=2, halt_rule="difference")
RECIPE = Recipe(
    puzzle=PUZZLE.name,
    batch_size=8,
    window=2,
    lr=2e-4,  # slow, so that differences of rounding do not grow
    warmup_samples=0,
    explore=0.3,
    continue_loss=True,
)


class Numbered(SplitSource):
    """A data set whose examples have their own puzzle ids, as in ARC."""

    def rows(self, indices_B: np.ndarray) -> Batch:
        ids_B = (indices_B % NUM_IDS).astype(np.int32)
        return super().rows(indices_B)._replace(puzzle_ids_B=ids_B)


class Cramped(HRM):
    """A network on a device with memory for two rows."""

    def think(
        self, carry: Carry, tokens_BT: torch.Tensor, puzzle_vector_BE: torch.Tensor
    ) -> SegmentOutput:
        if len(tokens_BT) > 2:
            raise torch.OutOfMemoryError("two rows at most")
        return super().think(carry, tokens_BT, puzzle_vector_BE)


def trainer_on(data: Path, micro_batch: int = 0, model_type: type[HRM] = HRM) -> Trainer:
    torch.manual_seed(0)
    model = model_type(CONFIG)
    model.q_head.bias.data[0] += 1  # some rows halt before the limit
    source = Numbered(data, open_split(data, "train"), PUZZLE)
    return Trainer(model, source, RECIPE, PRESETS["cpu"], micro_batch=micro_batch)


def print_losses(data: Path, saved: Path) -> None:
    """Train as one of the ranks; the first prints the losses."""
    with joined() as ranks:
        trainer = trainer_on(data, micro_batch=3)  # splits the four rows of a rank into 2 and 2
        found = losses(trainer, SAVED_AT)
        trainer.save(saved, {})
        found += losses(trainer, STEPS - SAVED_AT)
        if ranks.is_first:
            table = trainer.model.puzzle_table.tolist()
            print(json.dumps({"losses": found, "table": table}))


def slowed(model: HRM, carry: Carry, tokens_BT: torch.Tensor, ids_B: torch.Tensor) -> SegmentOutput:
    time.sleep(ROW_S * len(tokens_BT))
    output = model.think(carry, tokens_BT, model.puzzle_table[ids_B])
    return output._replace(carry=output.carry.detach())


def validation(data: Path, path: Path) -> dict[str, float]:
    """Train shortly and validate."""
    run = training_run(path, small_trainer(data, total_samples=16))
    run.finish(Stages())
    return read_lines(path / VALIDATIONS)[-1]


def print_validation(data: Path, path: Path) -> None:
    """Validate on two ranks, where this takes longer than a collective may."""
    HRM.segment = slowed
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group = partial(dist.init_process_group, timeout=limit)
    with joined() as ranks:
        found = validation(data, path)
        if ranks.is_first:
            print(json.dumps(found))


if __name__ == "__main__":
    programs = {"losses": print_losses, "validation": print_validation}
    programs[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
