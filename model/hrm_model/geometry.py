"""A relational model on another board: its weights know the puzzle's relations and not how large a board is."""

from dataclasses import replace

import torch

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
