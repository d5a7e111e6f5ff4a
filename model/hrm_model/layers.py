"""The building blocks of the published HRM and TRM, in plain PyTorch with SDPA attention.

Shapes: B batch, N positions (prefix + tokens), D hidden, K head width, F SwiGLU width.
Matrices are stored [out, in] as in published checkpoints and have no biases.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the field's usual alias)
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.ops import fake_int8, fake_int8_weight, gated, residual_norm

_TRUNCATED_STD = 0.8796256610342398  # of a unit normal cut at two sigma: dividing by it restores the spread

BOARD_THETA = 30.0  # no board is longer
Rotation = tuple[Tensor, Tensor]


def truncated_normal_(weights: Tensor, std: float) -> Tensor:
    """Fills with a normal cut at two sigma whose standard deviation *after* the cut is `std` (0 gives zeros)."""
    if std == 0:
        return weights.zero_()
    sigma = std / _TRUNCATED_STD
    return nn.init.trunc_normal_(weights, std=sigma, a=-2 * sigma, b=2 * sigma)


class Linear(nn.Module):
    """y = x W^T without bias; W [out, in] starts as a truncated normal of spread 1/sqrt(in).

    Where `as_int8` is set both are rounded first, as an INT8 engine would.
    """

    as_int8 = False

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal_(torch.empty(num_out, num_in), 1 / math.sqrt(num_in)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(*self.operands(x))

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x and W in x's type, as they are multiplied."""
        if not self.as_int8:
            return x, self.weight.to(x.dtype)
        return fake_int8(x), fake_int8_weight(self.weight).to(x.dtype)


def rotary_table(config: HRMConfig) -> Rotation:
    """Cosines and sines [positions, K] of the rotate-half form; the prefix counts as positions.

    Where cells hold colours a place is its row and its column, which share out the width.
    """
    axes, width, theta = [torch.arange(config.num_positions)], config.head_size, config.rope_theta
    if config.has_colours:
        axes = torch.meshgrid(*map(torch.arange, config.board), indexing="ij")
        width, theta = config.num_channels // 2, BOARD_THETA
    frequencies = theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.cat([torch.outer(axis.flatten().float(), frequencies) for axis in axes], dim=-1)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Applies rotary positions to x [B, heads, positions, K], the first ones of the table, in float32."""
    cos, sin = (table[: x.shape[-2]] for table in rotation)
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Full self-attention without a mask; the fused projection holds all queries, then all keys, then all values."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.qkv_proj = Linear(config.hidden_size, 3 * config.hidden_size)
        self.o_proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BND: Tensor, rotation: Rotation | None, num_queries: int | None = None) -> Tensor:
        """[B, num_queries, D]: every position answers unless only the first `num_queries` are asked for."""
        if num_queries is None:
            q, k, v = self._heads(self.qkv_proj(x_BND)).chunk(3, dim=1)
        else:
            operand_BND, weight = self.qkv_proj.operands(x_BND)
            width = x_BND.shape[-1]
            q = self._heads(F.linear(operand_BND[:, :num_queries], weight[:width]))
            k, v = self._heads(F.linear(operand_BND, weight[width:])).chunk(2, dim=1)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


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

    def forward(self, x_BND: Tensor, rotation: Rotation | None, num_read: int | None = None) -> Tensor:
        """All positions, or the first `num_read` where the others are not read."""
        x_BND = residual_norm(x_BND[:, :num_read], self.self_attn(x_BND, rotation, num_read), self.eps)
        return residual_norm(x_BND, self.mlp(x_BND), self.eps)


class MixerBlock(nn.Module):
    """TRM's block without attention: a SwiGLU over the positions of each channel, normalised over the positions."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.mlp_t = SwiGLU(config.num_positions, config.intermediate_of(config.num_positions))
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x_BND: Tensor, _: Rotation | None, num_read: int | None = None) -> Tensor:
        turned_BDN = x_BND.transpose(1, 2)
        x_BND = residual_norm(turned_BDN, self.mlp_t(turned_BDN), self.eps).transpose(1, 2)[:, :num_read]
        return residual_norm(x_BND, self.mlp(x_BND), self.eps)


class Level(nn.Module):
    """One of HRM's two recurrent levels: blocks in a row, on a state to which the caller has added the injection."""

    def __init__(self, config: HRMConfig, num_layers: int, block: Callable[[HRMConfig], nn.Module] = Block) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block(config) for _ in range(num_layers))

    def compute_as_int8(self) -> None:
        """From now on every product is that of an INT8 engine, but for the order of summation."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.as_int8 = True

    @property
    def blocks(self) -> list[Block]:
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def forward(self, x_BND: Tensor, rotation: Rotation | None, num_read: int | None = None) -> Tensor:
        """All positions, or the first `num_read`: attention needs every position of all blocks but the last."""
        *before, last = self.layers
        for layer in before:
            x_BND = layer(x_BND, rotation)
        return last(x_BND, rotation, num_read)
