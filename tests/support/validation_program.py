"""A short training on two ranks, whose validation alone takes longer than a collective may."""

import json
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from train_tools import small_trainer, training_run

from hrm_host.progress import Stages
from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_train.distributed import joined

ROW_S = 0.2  # for each row and segment: 32 s for all 40 puzzles, 16 s for each share
LIMIT_S = 24


def slowed(model: HRM, carry: Carry, tokens_BT: torch.Tensor, ids_B: torch.Tensor) -> SegmentOutput:
    time.sleep(ROW_S * len(tokens_BT))
    output = model.think(carry, tokens_BT, model.puzzle_table[ids_B])
    return output._replace(carry=output.carry.detach())


def main(data: Path, path: Path) -> None:
    if len(sys.argv) > 3:
        HRM.segment = slowed
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group = partial(dist.init_process_group, timeout=limit)
    with joined() as ranks:
        run = training_run(path, small_trainer(data, total_samples=16))
        evaluation = run.finish(Stages())
        assert evaluation is not None
        if ranks.is_first:
            print(json.dumps({"loss": evaluation.loss, "cells": evaluation.cells}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
