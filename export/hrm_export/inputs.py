"""Find what an export reads: checkpoint, puzzle, data set, names of tasks, puzzles to measure on.

Shapes: N puzzles, T tokens.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hrm_calibration.int8 import MAX_PUZZLES
from hrm_calibration.judge import PER_HELD_OUT
from hrm_export.options import Options
from hrm_host import machine, progress
from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.arc.examples import num_by_task_in
from hrm_puzzles.data.datasets import BLANK_IDENTIFIER, identifiers_at, open_split
from hrm_puzzles.data.sources import Questions, find_questions
from hrm_puzzles.puzzle import Puzzle, Voting

RUNS = Path("runs")
BEST = "best"
LATEST = "latest"

Tasks = dict[str, dict[str, list[Any]]]
"""Pairs of input and output grids by task, then by split."""


def find_checkpoint(source: Path | None, calib: str | None) -> Path:
    """Find the checkpoint: the named one, or the best of the named run or the puzzle's run."""
    if source is None:
        return _checkpoint_for(calib)
    run = source
    if source.name == BEST and not source.exists():
        run = source.parent
    return checkpoint.pointer_of(run) or source


def _checkpoint_for(calib: str | None) -> Path:
    if calib is None:
        remedy = "give CHECKPOINT, or --calib NAME to export runs/NAME/best"
        raise ValueError(f"no checkpoint was given; {remedy}")
    run = RUNS / Path(calib).name
    source = checkpoint.pointer_of(run)
    if source is None:
        remedy = "give CHECKPOINT"
        if calib in registry.names():
            remedy = f"train first: hrm-train --puzzle {calib}"
        raise ValueError(f"--calib {calib} selects {run / BEST}, which does not exist; {remedy}")
    return source


def bundle_name(source: Path) -> str:
    """The run's name if the checkpoint belongs to a run, else the directory's name."""
    if source.is_file() or source.name.startswith("step_"):
        return source.resolve().parent.name
    return source.name


def open_model(source: Path, board: str | None) -> tuple[HRM, Puzzle, dict[str, Any]]:
    """The model of a checkpoint, its puzzle, and its meta data.

    `board` is the size or the name of another board; ValueError if the weights fit only one size.
    """
    own, meta = checkpoint.load(source)
    puzzle = puzzle_of(own.config, meta.get("puzzle"), source)
    if board is not None:
        if own.config.blocks != "relational":
            problem = f"--board {board} needs relational weights, which {source} lacks"
            raise ValueError(f"{problem}; omit --board")
        if board[:1].isdigit():
            kind = puzzle.name.partition("-")[0]
            board = f"{kind}-{board}"
        puzzle = registry.get(board)
    return geometry.on_board(own, puzzle), puzzle, meta


def puzzle_of(config: HRMConfig, name: object, source: Path) -> Puzzle:
    """The puzzle of the training; ValueError if its sizes are not the model's."""
    if not isinstance(name, str):
        remedy = "write the checkpoint again with hrm-train or hrm-import"
        raise ValueError(f"{source} does not name its puzzle ({name!r}); {remedy}")
    puzzle = registry.get(name)
    if (config.seq_len, config.vocab_size) != (puzzle.seq_len, puzzle.vocab_size):
        found = f"{config.seq_len} positions of {config.vocab_size} tokens"
        expected = f"{puzzle.seq_len} of {puzzle.vocab_size}"
        remedy = "export it with the version of the puzzle that trained it"
        raise ValueError(f"{source} has {found} but {name} has {expected}; {remedy}")
    return puzzle


def data_of(given: Path | None, source: Path, config: HRMConfig, puzzle: Puzzle) -> Path | None:
    """The given data set, or that of the run if the model has learned tasks by name."""
    if given is not None or config.num_puzzle_ids == 1:
        return given
    run = source.parent / "run.json"
    if run.is_file():
        recorded = checkpoint.read_json(run).get("data")
        if isinstance(recorded, str) and Path(recorded).is_dir():
            return Path(recorded)
    build = f"hrm-data build {puzzle.name} --out data/{puzzle.name}"
    raise ValueError(
        f"the puzzle table has {config.num_puzzle_ids} rows, and only the training's data set "
        f"names them; give it with --data (made by {build}, or by the published builder), "
        "or keep rows without names with --puzzle-ids"
    )


def identifiers_of(data: Path | None, num_puzzle_ids: int) -> list[str]:
    """Names of the rows of the puzzle table; numbers without a data set."""
    if data is None:
        numbers = map(str, range(1, num_puzzle_ids))
        return [BLANK_IDENTIFIER, *numbers]
    names = identifiers_at(data)
    if len(names) != num_puzzle_ids:
        problem = f"{data} names {len(names)} puzzles but the table has {num_puzzle_ids} rows"
        remedy = f"give the data set that trained the model, or keep {len(names)} rows"
        raise ValueError(f"{problem}; {remedy} with --puzzle-ids {len(names)}")
    return names


def tasks_of(data: Path | None, puzzle: Puzzle, identifiers: Sequence[str]) -> Tasks:
    """The original pairs of each task, without its variants, by split; none without a data set.

    Demonstrations only: the generated examples of a task would be most of the bundle.
    """
    if data is None or not isinstance(puzzle, Voting):
        return {}
    named: dict[int, str] = {}
    for row, name in enumerate(identifiers):
        if row and puzzle.variant_of(name)[0] == name:
            named[row] = name
    tasks: Tasks = {name: {"train": [], "test": []} for name in named.values()}
    for split_name in ("train", "test"):
        split = open_split(data, split_name, puzzle)
        rows = np.flatnonzero(np.isin(split.puzzle_ids_N, list(named)))
        inputs_NT = split.inputs(rows)
        labels_NT = split.labels(rows)
        for index, row in enumerate(rows):
            question = puzzle.decode(inputs_NT[index]).tolist()
            answer = puzzle.decode(labels_NT[index]).tolist()
            name = named[int(split.puzzle_ids_N[row])]
            tasks[name][split_name].append({"input": question, "output": answer})
    for name, count in num_by_task_in(data).items():
        del tasks[name]["train"][-count:]
    return tasks


def find_puzzles(
    options: Options,
    config: HRMConfig,
    puzzle: Puzzle,
    data: Path | None,
    stages: progress.Stages,
) -> tuple[Questions, Questions]:
    """Puzzles to calibrate with and others to measure on, generated if no source is named.

    A small source gives a quarter of its puzzles to calibration.
    """
    reserved = 0
    if options.lower_precisions:
        reserved = min(MAX_PUZZLES, PER_HELD_OUT * options.held_out)
    default = str(data) if data else puzzle.name
    questions = find_questions(
        options.calib or default,
        puzzle,
        count=options.held_out + reserved,
        data=data,
        num_workers=machine.num_cores(),
        progress=partial(stages.show, "making puzzles"),
    )
    questions.require_ids(config.num_puzzle_ids)
    num_found = len(questions)
    order_N = np.random.default_rng(0).permutation(num_found)
    spare = max(num_found - options.held_out, num_found // 4)
    num_calibration = min(reserved, spare)
    calibration = questions.at(order_N[:num_calibration])
    held_out = questions.at(order_N[num_calibration:])
    return calibration, held_out
