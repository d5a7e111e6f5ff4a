"""The trainer of a plan at its first step, with fresh weights or those of `--init`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hrm_model import checkpoint, geometry
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Hinted, Puzzle
from hrm_train import batches
from hrm_train.hardware import Say, prepare
from hrm_train.loop import Trainer
from hrm_train.run_plan import RunPlan


def trainer_from(plan: RunPlan, say: Say = print) -> Trainer:
    """Returns the trainer at its first step; `Trainer.restore` moves it to a checkpoint.

    Raises ValueError if the planned device is missing.
    """
    recipe = plan.recipe
    puzzle = registry.get(recipe.puzzle)
    prepare(plan.hardware)
    _check_hints(plan, puzzle)
    source = batches.open_source(plan.data, "train", puzzle)
    feed = batches.Feed(source, puzzle, seed=recipe.seed, augment=recipe.augment)
    torch.manual_seed(recipe.seed)
    model = model_of(plan.config)
    # A checkpoint of the run itself replaces these weights anyway.
    if plan.init and not checkpoint.steps_of(plan.run):
        start = checkpoint.resolve(plan.init)
        state = _initial_state(start, model, puzzle, source.identifiers)
        checkpoint.load_state(model, state, start)
    micro_batch = plan.micro_batch_of(model.num_parameters)
    return Trainer(model, feed, recipe, plan.hardware, micro_batch=micro_batch, say=say)


def _check_hints(plan: RunPlan, puzzle: Puzzle) -> None:
    num_hints = plan.config.num_hints
    if not isinstance(puzzle, Hinted) or num_hints in (0, puzzle.num_hints):
        return
    raise ValueError(
        f"the run of {plan.run} learns {num_hints} kinds of hints, but {puzzle.name} has "
        f"{puzzle.num_hints}; start another --run with --init {plan.run}/latest"
    )


def _initial_state(
    path: Path, model: HRM, puzzle: Puzzle, names: Callable[[], Sequence[str]]
) -> dict[str, Tensor]:
    """The weights of a checkpoint in the shapes of `model`, on the puzzle's board.

    `names` returns the names of the puzzle ids of the data.
    """
    loaded, meta = checkpoint.load(path)
    start = geometry.on_board(loaded, puzzle)
    config = model.config
    state = start.state_dict()
    if start.config.hidden_size != config.hidden_size:
        state = geometry.widened(start, model)
    table_NE = state["puzzle_table"]
    if checkpoint.PUZZLE_IDS in meta:
        state["puzzle_table"] = _vectors_of(names(), table_NE, meta[checkpoint.PUZZLE_IDS])
    elif len(table_NE) != config.num_puzzle_ids:
        state["puzzle_table"] = table_NE.mean(0).expand_as(model.puzzle_table)
    if start.config.num_hints != config.num_hints:
        state = _with_fresh_hints(state, model)
    return state


def _vectors_of(names: Sequence[str], table_NE: Tensor, known: Sequence[str]) -> Tensor:
    """The table for puzzles of these names: known ones keep their vector, others get the mean."""
    row_of = {name: row for row, name in enumerate(known)}
    mean_E = table_NE.mean(0)
    vectors: list[Tensor] = []
    for name in names:
        row = row_of.get(name)
        vectors.append(mean_E if row is None else table_NE[row])
    return torch.stack(vectors)


def _with_fresh_hints(state: dict[str, Tensor], model: HRM) -> dict[str, Tensor]:
    """Replaces the hint head by that of `model`: other hints are learned anew."""
    mixed = {name: tensor for name, tensor in state.items() if "hint_head" not in name}
    for name, tensor in model.state_dict().items():
        if "hint_head" in name:
            mixed[name] = tensor
    return mixed
