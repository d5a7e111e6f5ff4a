"""The trainer of a plan at its first step, with fresh weights or those of `--init`."""

from pathlib import Path

import torch
from torch import Tensor

from hrm_model import checkpoint, geometry
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
    model = HRM(plan.config)
    # A checkpoint of the run itself replaces these weights anyway.
    if plan.init and not checkpoint.steps_of(plan.run):
        start = checkpoint.resolve(plan.init)
        checkpoint.load_state(model, _initial_state(start, model, puzzle), start)
    micro_batch = plan.micro_batch_for(model)
    return Trainer(model, feed, recipe, plan.hardware, micro_batch=micro_batch, say=say)


def _check_hints(plan: RunPlan, puzzle: Puzzle) -> None:
    num_hints = plan.config.num_hints
    if not isinstance(puzzle, Hinted) or num_hints in (0, puzzle.num_hints):
        return
    raise ValueError(
        f"the run of {plan.run} learns {num_hints} kinds of hints, but {puzzle.name} has "
        f"{puzzle.num_hints}; start another --run with --init {plan.run}/latest"
    )


def _initial_state(path: Path, model: HRM, puzzle: Puzzle) -> dict[str, Tensor]:
    """The weights of a checkpoint in the shapes of `model`, on the puzzle's board."""
    loaded, _ = checkpoint.load(path)
    start = geometry.on_board(loaded, puzzle)
    config = model.config
    state = start.state_dict()
    if start.config.hidden_size != config.hidden_size:
        state = geometry.widened(start, model)
    if len(state["puzzle_table"]) != config.num_puzzle_ids:
        # Other puzzles: each vector begins as the mean of the old ones.
        mean_E = state["puzzle_table"].mean(0)
        state["puzzle_table"] = mean_E.expand_as(model.puzzle_table)
    if start.config.num_hints != config.num_hints:
        state = _with_fresh_hints(state, model)
    return state


def _with_fresh_hints(state: dict[str, Tensor], model: HRM) -> dict[str, Tensor]:
    """Replaces the hint head by that of `model`: other hints are learned anew."""
    mixed = {name: tensor for name, tensor in state.items() if "hint_head" not in name}
    for name, tensor in model.state_dict().items():
        if "hint_head" in name:
            mixed[name] = tensor
    return mixed
