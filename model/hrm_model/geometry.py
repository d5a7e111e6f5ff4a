"""Start from a checkpoint: on another board, with more channels or other puzzle ids.

The weights of a relational model depend on the puzzle's relations, not on the board's size.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hrm_model import checkpoint
from hrm_model.config import HRMConfig, num_hints_of
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import Split
from hrm_puzzles.puzzle import Puzzle

NOISE = 0.01  # share of a fresh weight in a new channel: from zero it would learn nothing
NEAR = "near_proj.weight"
# matrices that read the state
READING = (NEAR, "message_proj.weight", "state_proj.weight", "head.weight")
WRITING = ("out_proj.weight", "_init")  # tensors that write the state
STARTS = ("high_init", "low_init")


def config_on(config: HRMConfig, puzzle: Puzzle) -> HRMConfig:
    """The sizes of a relational model on the puzzle's board."""
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


def config_for_training(config: HRMConfig, puzzle: Puzzle) -> HRMConfig:
    """The sizes of a model that continues training on this puzzle."""
    if config.blocks == "relational":
        config = config_on(config, puzzle)
    if not config.num_hints:
        return config
    return replace(config, num_hints=num_hints_of(puzzle))


def on_board(model: HRM, puzzle: Puzzle) -> HRM:
    """Returns a relational model with the same weights for the puzzle's board.

    Other models are returned as they are. Random starts belong to a board, so another board gets
    new ones, always the same. Raises ValueError if the weights do not fit the puzzle.
    """
    config = model.config
    if config.blocks != "relational":
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = model_of(config_on(config, puzzle))
    weights = model.state_dict()
    if config.random_start and other.config.board != config.board:
        for name in STARTS:
            weights[name] = other.get_buffer(name)
    for name, own in other.state_dict().items():
        if own.shape != weights[name].shape:
            raise ValueError(
                f"weights of a board {config.board} lack {name} for {puzzle.name}; "
                "choose a checkpoint of the same kind of puzzle"
            )
    other.load_state_dict(weights)
    return other.train(model.training)


def widened(model: HRM, wide: HRM) -> dict[str, Tensor]:
    """Returns a state of `wide`, a fresh model with more channels, that computes what `model` does.

    The results differ only by noise. Normalization divides by the root of the mean over all
    channels, so weights that write the old channels are scaled up and weights that read them are
    scaled down. After Net2WiderNet (arXiv:1511.05641). Raises ValueError for fewer channels, and
    for blocks of colors.
    """
    config = model.config
    before = config.hidden_size
    after = wide.config.hidden_size
    is_known = config.blocks == "relational" and not config.has_colors
    if not is_known or after < before:
        raise ValueError(
            f"weights of {before} channels cannot be widened to {after}; only weights of a grid "
            "or of a Sudoku can, and only to more channels"
        )
    scale = math.sqrt(after / before)
    state = wide.state_dict()
    for name, old in model.state_dict().items():
        new = state[name]
        num_parts = _num_parts(name, old, config)
        # Each part has its own channels. Fresh weights that read a neighbor are small already.
        old = old.unflatten(-1, (num_parts, -1))
        new = new.unflatten(-1, (num_parts, -1))
        if old.shape != new.shape and not name.endswith(NEAR):
            new *= NOISE
        if name.endswith(READING):
            old = old / scale
        elif name.endswith(WRITING):
            old = old * scale
        corner = tuple(slice(size) for size in old.shape)
        new[corner] = old
    return state


def start_from(path: Path, model: HRM, data: Split) -> None:
    """Gives a model the weights of a checkpoint, on the board and for the puzzle ids of the data.

    Raises ValueError if they do not fit.
    """
    start = checkpoint.resolve(path)
    loaded, meta = checkpoint.load(start)
    other = on_board(loaded, data.puzzle)
    state = other.state_dict()
    if other.config.hidden_size != model.config.hidden_size:
        state = widened(other, model)
    table_NE = state["puzzle_table"]
    if checkpoint.PUZZLE_IDS in meta:
        known = meta[checkpoint.PUZZLE_IDS]
        state["puzzle_table"] = _vectors_of(data.identifiers(), table_NE, known)
    elif len(table_NE) != model.config.num_puzzle_ids:
        state["puzzle_table"] = table_NE.mean(0).expand_as(model.puzzle_table)
    checkpoint.load_state(model, state, start)


def _vectors_of(names: Sequence[str], table_NE: Tensor, known: Sequence[str]) -> Tensor:
    """The table for puzzles of these names: known ones keep their vector, others get the mean."""
    vector_of = dict(zip(known, table_NE, strict=False))
    mean_E = table_NE.mean(0)
    return torch.stack([vector_of.get(name, mean_E) for name in names])


def _num_parts(name: str, tensor: Tensor, config: HRMConfig) -> int:
    """The number of vectors in the last axis of a tensor."""
    if name.endswith(NEAR):
        return 9  # a cell and its eight neighbors
    if name in STARTS:
        return tensor.shape[-1] // config.num_channels
    return 1
