"""A short training as one of several ranks; the first prints the losses."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
from train_tools import PUZZLE, SIZES

from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_puzzles.data.datasets import open_split
from hrm_train.batches import Batch, Feed, SplitSource
from hrm_train.distributed import joined
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe

NUM_IDS = 5
STEPS = 20
SAVED_AT = 18
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
    feed = Feed(source, PUZZLE, seed=0, augment=True)
    return Trainer(model, feed, RECIPE, PRESETS["cpu"], micro_batch=micro_batch)


def losses(trainer: Trainer, steps: int) -> list[float]:
    return [float(trainer.step().loss) for _ in range(steps)]


def main(data: Path, saved: Path) -> None:
    with joined() as ranks:
        trainer = trainer_on(data, micro_batch=3)  # splits the four rows of a rank into 2 and 2
        found = losses(trainer, SAVED_AT)
        trainer.save(saved, {})
        found += losses(trainer, STEPS - SAVED_AT)
        if ranks.is_first:
            table = trainer.model.puzzle_table.tolist()
            print(json.dumps({"losses": found, "table": table}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
