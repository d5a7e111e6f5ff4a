"""The building blocks of the published HRM and TRM, in plain PyTorch with SDPA attention.

Shapes: B batch, N positions (prefix + tokens), D hidden, K head width, F SwiGLU width.
Matrices are [out, in], as in published checkpoints, and have no biases.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the field's usual alias)
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.ops import gated, residual_norm

# Standard deviation of a unit normal that is cut at two sigma. Dividing by it restores the spread.
_TRUNCATED_STD = 0.8796256610342398
# Base of the rotary frequencies of a board: no board has more rows or columns.
BOARD_THETA = 30.0

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions."""


def truncated_normal_(weights: Tensor, std: float) -> Tensor:
    """Fills with a normal distribution truncated at two sigma.

    `std` is its standard deviation *after* the truncation (0: zeros).
    """
    if std == 0:
        return weights.zero_()
    sigma = std / _TRUNCATED_STD
    return nn.init.trunc_normal_(weights, std=sigma, a=-2 * sigma, b=2 * sigma)


class Linear(nn.Module):
    """y = x W^T without bias; W [out, in] starts as a truncated normal of spread 1/sqrt(in)."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        weight = torch.empty(num_out, num_in)
        truncated_normal_(weight, std=1 / math.sqrt(num_in))
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def q_values(state: Tensor, head: nn.Linear) -> Tensor:
    """q_halt and q_continue [..., 2] of vectors [..., C], in float32."""
    return F.linear(state.float(), head.weight.float(), head.bias.float())


def rotary_table(config: HRMConfig) -> Rotation:
    """Cosines and sines [positions, K] of the rotate-half form; the prefix counts as positions.

    On a board of colors, a cell's row takes half of the width and its column the other half.
    """
    if config.has_colors:
        axes = map(torch.arange, config.board)
        rows, columns = torch.meshgrid(*axes, indexing="ij")
        width = config.num_channels // 2
        row_angles = _angles(rows.flatten(), width, BOARD_THETA)
        column_angles = _angles(columns.flatten(), width, BOARD_THETA)
        angles = torch.cat([row_angles, column_angles], dim=-1)
    else:
        positions = torch.arange(config.num_positions)
        angles = _angles(positions, config.head_size, config.rope_theta)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _angles(places_N: Tensor, width: int, theta: float) -> Tensor:
    """Rotary angles [N, width / 2] of places on one axis."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    return torch.outer(places_N.float(), theta**-exponents)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Applies the first rows of the rotary table to x [B, heads, positions, K], in float32."""
    cos, sin = rotation
    num_positions = x.shape[-2]
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    rotated = wide * cos[:num_positions] + turned * sin[:num_positions]
    return rotated.to(x.dtype)


class Attention(nn.Module):
    """Full self-attention without a mask.

    The fused projection holds all queries, then all keys, then all values.
    """

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.qkv_proj = Linear(config.hidden_size, 3 * config.hidden_size)
        self.o_proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BND: Tensor, rotation: Rotation | None) -> Tensor:
        heads = self.qkv_proj(x_BND).unflatten(-1, (-1, self.head_size))
        q, k, v = heads.transpose(1, 2).chunk(3, dim=1)
        if rotation is not None:
            q = rotate(q, rotation)
            k = rotate(k, rotation)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are the two halves of one matrix."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(width, 2 * inner)
        self.down_proj = Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(self.gate_up_proj(x)))


class Block(nn.Module):
    """Post-norm transformer block: h = rms(h + attention(h)); h = rms(h + mlp(h))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x_BND: Tensor, rotation: Rotation | None) -> Tensor:
        x_BND = residual_norm(x_BND, self.self_attn(x_BND, rotation), self.eps)
        return residual_norm(x_BND, self.mlp(x_BND), self.eps)


class MixerBlock(nn.Module):
    """TRM's block without attention: a SwiGLU over each channel's positions, with their norm."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        num_positions = config.num_positions
        self.mlp_t = SwiGLU(num_positions, config.intermediate_of(num_positions))
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x_BND: Tensor, _: Rotation | None) -> Tensor:
        x_BDN = x_BND.transpose(1, 2)
        mixed_BDN = residual_norm(x_BDN, self.mlp_t(x_BDN), self.eps)
        x_BND = mixed_BDN.transpose(1, 2)
        return residual_norm(x_BND, self.mlp(x_BND), self.eps)


class Level(nn.Module):
    """One of HRM's two recurrent levels: a stack of blocks. The caller adds the injection first."""

    def __init__(
        self, config: HRMConfig, num_layers: int, block: Callable[[HRMConfig], nn.Module]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block(config) for _ in range(num_layers))

    def forward(self, x_BND: Tensor, rotation: Rotation | None) -> Tensor:
        for layer in self.layers:
            x_BND = layer(x_BND, rotation)
        return x_BND
