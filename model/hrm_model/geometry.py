"""A starting point that knows the puzzle's geometry, for models with learned positions.

A fresh transformer spends most of a small training budget on finding out which cells belong together. Here every
partition of the positions (Sudoku: rows, columns, boxes; a grid: rows, columns) gets its own subspace of the hidden
state, in which each position carries the code of its group, and the first attention heads of every layer start by
looking where the geometry says: within a partition, or at a neighbour. Only the starting point changes: the network is
the published one and everything trains freely from there. Measured in docs/models.md.

Shapes: T tokens, D hidden, K head width, R groups of one partition.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles.puzzle import Geometry, Puzzle

CODE_SIZE = 4.0  # length of a group's code in the segment's input; the other entries' is near sqrt(D / 2)
CODE_SIZE_HIGH = 2.0  # what is left of it after a normalised low level, where the high level reads it
SCORE, SCORE_OF_SEVERAL = 3.0, 5.0  # attention logit of each partition that matches; several must pick out few cells


@torch.no_grad()
def start_from_geometry(model: HRM, geometry: Geometry) -> None:
    """Rewrites token and position embeddings and the first heads' queries and keys, in place.

    Refuses rotary models, fewer heads than the geometry describes, and heads narrower than the groups they tell apart.
    """
    config = model.config
    groups_GT = torch.as_tensor(geometry.groups_GT).long()
    sizes, problem = _sizes(geometry), misfit(config, geometry)
    if problem is not None:
        raise ValueError(problem)
    orthonormal_DD = torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size))[0]
    frames_RD = orthonormal_DD[: sum(sizes)].split(sizes)
    frame_SD = torch.cat(frames_RD)
    for rows in (model.embed_tokens, model.embed_positions, model.high_init, model.low_init):
        rows -= rows @ frame_SD.T @ frame_SD  # nothing else in the segment's input uses the reserved subspace
    codes_TD = sum(frame_RD[group_T] for frame_RD, group_T in zip(frames_RD, groups_GT, strict=True))
    scale = CODE_SIZE * math.sqrt(2 / config.hidden_size)  # the segment multiplies by sqrt(D) and sqrt(1/2)
    model.embed_positions[config.prefix_len :] += scale * codes_TD
    for level, code_size in ((model.low_level, CODE_SIZE), (model.high_level, CODE_SIZE_HIGH)):
        for block in level.blocks:
            queries_DD, keys_DD, _ = block.self_attn.qkv_proj.weight.split(config.hidden_size)
            for head, conditions in enumerate(geometry.heads):
                rows = slice(head * config.head_size, (head + 1) * config.head_size)
                _look(queries_DD[rows], keys_DD[rows], frames_RD, conditions, code_size)


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


def misfit(config: HRMConfig, geometry: Geometry) -> str | None:
    """Why a model of these sizes cannot start from the geometry, in one sentence; None where it can."""
    if config.blocks == "relational":
        return "relational blocks know the geometry from the start; set geometric_start=false"
    if config.blocks == "mixer" or config.arch == "trm":
        return "a TRM or a mixer has no heads of two levels to start from the geometry; set geometric_start=false"
    if config.positions != "learned":
        return "positions is 'rope', but a geometric start needs a table; choose positions='learned'"
    sizes = _sizes(geometry)
    widest = max(sum(sizes[partition] for partition, _ in head) for head in geometry.heads)
    if len(geometry.heads) > config.num_heads or widest > config.head_size or sum(sizes) > config.hidden_size:
        return (
            f"{config.num_heads} heads of width {config.head_size} cannot hold a geometry of {len(geometry.heads)} "
            f"heads that tell up to {widest} groups apart; choose {len(geometry.heads)} heads of width {widest} or more"
        )
    return None


def _sizes(geometry: Geometry) -> list[int]:
    """The number of groups in each partition."""
    return [int(group_T.max()) + 1 for group_T in geometry.groups_GT]


def _look(
    query_KD: Tensor,
    key_KD: Tensor,
    frames_RD: tuple[Tensor, ...],
    conditions: tuple[tuple[int, int], ...],
    code_size: float,
) -> None:
    """A position of group g asks on channel g + shift, a position of group g answers on channel g."""
    score = SCORE if len(conditions) == 1 else SCORE_OF_SEVERAL
    gain = math.sqrt(score * math.sqrt(len(query_KD))) / code_size
    query_KD.zero_()
    key_KD.zero_()
    first = 0
    for partition, shift in conditions:
        frame_RD = frames_RD[partition]
        num_groups = len(frame_RD)
        key_KD[first : first + num_groups] = gain * frame_RD
        asked = [group for group in range(num_groups) if 0 <= group + shift < num_groups]
        query_KD[[first + group + shift for group in asked]] = gain * frame_RD[asked]
        first += num_groups
