"""A starting point that knows the puzzle's geometry, for models with learned positions.

A fresh transformer spends most of a small training budget on finding out which cells belong together. Here every
partition of the positions (Sudoku: rows, columns, boxes) gets its own subspace of the hidden state, in which each
position carries the code of its group, and one attention head of every layer starts by attending within that partition.
Only the starting point changes: the network is the published one and everything trains freely from there. Measured in
docs/models.md.

Shapes: G partitions, T tokens, D hidden, K head width, R groups in the largest partition.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrm_model.hrm import HRM

CODE_SIZE = 4.0
"""Length of a group's code in the segment's input, where the other entries have a length near sqrt(D / 2)."""
CODE_SIZE_HIGH = 2.0
"""What is left of it after a normalised low level, where the high level reads it."""
SCORE = 3.0
"""Attention logit between members of one group at the start: about nine tenths of a head's attention stays inside."""


@torch.no_grad()
def start_from_geometry(model: HRM, position_groups_GT: NDArray[np.integer]) -> None:
    """Rewrites token and position embeddings and the first G heads' queries and keys, in place.

    position_groups_GT int [G, T] numbers the group each position lies in, from 0. Refuses rotary models, fewer heads
    than partitions, and heads narrower than the largest partition.
    """
    config = model.config
    groups_GT = torch.as_tensor(position_groups_GT).long()
    num_partitions, num_groups = len(groups_GT), int(groups_GT.max()) + 1
    if config.positions != "learned":
        raise ValueError("positions is 'rope', but a geometric start needs a table; choose positions='learned'")
    if num_partitions > config.num_heads or num_groups > config.head_size:
        raise ValueError(
            f"{config.num_heads} heads of width {config.head_size} cannot hold {num_partitions} partitions of up to "
            f"{num_groups} groups; choose at least {num_partitions} heads of width {num_groups}"
        )
    frames_GRD = _orthonormal(config.hidden_size)[: num_partitions * num_groups].view(num_partitions, num_groups, -1)
    _reserve(model, frames_GRD.flatten(0, 1))
    codes_TD = sum(frame_RD[group_T] for frame_RD, group_T in zip(frames_GRD, groups_GT, strict=True))
    scale = CODE_SIZE * math.sqrt(2 / config.hidden_size)  # the segment multiplies by sqrt(D) and sqrt(1/2)
    model.embed_positions[config.prefix_len :] += scale * codes_TD
    for level, code_size in ((model.low_level, CODE_SIZE), (model.high_level, CODE_SIZE_HIGH)):
        for block in level.blocks:
            _attend_within(block.self_attn.qkv_proj.weight, frames_GRD, config.head_size, code_size)


def _reserve(model: HRM, frame_SD: Tensor) -> None:
    """Takes everything else in the segment's input out of the reserved subspace."""
    for rows in (model.embed_tokens, model.embed_positions, model.high_init, model.low_init):
        rows -= rows @ frame_SD.T @ frame_SD


def _attend_within(qkv_weight: Tensor, frames_GRD: Tensor, head_size: int, code_size: float) -> None:
    """Head g's queries and keys both read partition g's code, so that equal groups score SCORE and others nothing."""
    num_groups, width = frames_GRD.shape[1:]
    gain = math.sqrt(SCORE * math.sqrt(head_size)) / code_size
    for head, frame_RD in enumerate(frames_GRD):
        for offset in (0, width):  # queries, then keys
            rows = qkv_weight[offset + head * head_size : offset + (head + 1) * head_size]
            rows.zero_()
            rows[:num_groups] = gain * frame_RD


def _orthonormal(size: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size))[0]
