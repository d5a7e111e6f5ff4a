"""A relational model on another board or with more channels.

Its weights know the puzzle's relations and not how large a board is.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles.puzzle import Puzzle


def config_on(config: HRMConfig, puzzle: Puzzle) -> HRMConfig:
    """The sizes of a relational model on the board of that puzzle: its weights do not know one."""
    geometry = puzzle.geometry
    return replace(
        config,
        vocab_size=puzzle.vocab_size,
        seq_len=puzzle.seq_len,
        board=geometry.board,
        num_symbols=geometry.num_symbols,
        num_fixed=geometry.num_fixed,
        hidden_size=config.num_channels * geometry.num_symbols,
    )


def on_board(model: HRM, puzzle: Puzzle) -> HRM:
    """The model, or where its blocks are relational one of the same weights for the board of that puzzle.

    Random starts belong to a board: those of another are drawn anew, always the same.
    """
    config = model.config
    if config.blocks != "relational":
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = HRM(config_on(config, puzzle))
    weights = model.state_dict()
    if config.random_start and other.config.board != config.board:
        weights |= {name: other.get_buffer(name) for name in ("high_init", "low_init")}
    for name, own in other.state_dict().items():
        if own.shape != weights[name].shape:
            raise ValueError(f"weights of a board {config.board} have no {name} for {puzzle.name}; choose its own kind")
    other.load_state_dict(weights)
    return other.train(model.training)


NOISE = 0.01  # share of a fresh weight that a new channel begins with: none would learn from zero


def widened(model: HRM, wide: HRM) -> dict[str, Tensor]:
    """The state of `wide`, fresh and of more channels a cell, that makes it compute what `model` does, but for noise.

    Normalisation divides by the root of the mean over all channels, so the old ones are written larger and read
    smaller. After Net2WiderNet (arXiv:1511.05641). Refuses fewer channels, and vectors of symbols.
    """
    before, after = model.config.hidden_size, wide.config.hidden_size
    if model.config.blocks != "relational" or model.config.num_symbols > 1 or after < before:
        raise ValueError(
            f"weights of {before} channels cannot be widened to {after}; only those of a grid can, to more"
        )
    scale, state = math.sqrt(after / before), wide.state_dict()
    for name, old in model.state_dict().items():
        new = state[name]
        if name.endswith("near_proj.weight"):  # [F, 9 D]; what it reads of new channels is small already
            old, new = old.unflatten(1, (9, -1)), new.unflatten(1, (9, -1))
        elif old.shape != new.shape:
            new *= NOISE
        is_read = name.endswith(("near_proj.weight", "head.weight"))
        is_written = name.endswith(("out_proj.weight", "_init"))
        new[tuple(map(slice, old.shape))] = old / scale if is_read else old * scale if is_written else old
    return state
