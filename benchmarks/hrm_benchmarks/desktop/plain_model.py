"""The published network, written again from its formulas as plainly as PyTorch allows: the baseline of training speed.

It shares no code with `hrm_model`, only the names of the weights, so that one state fits both. Float32, eager, SDPA.

Shapes: B batch, T tokens, N = prefix + T positions, D hidden, E puzzle-vector width, V vocabulary.
Source: the published HRM (sapientinc/HRM at 42410da).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig

Rotation = tuple[Tensor, Tensor]


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, length, 3 * self.num_heads, self.head_size)
        q, k, v = (part.transpose(1, 2) for part in qkv.split(self.num_heads, dim=2))
        if rotation is not None:
            cos, sin = rotation
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        x = rms_norm(x + self.self_attn(x, rotation), self.eps)
        return rms_norm(x + self.mlp(x), self.eps)


class Level(nn.Module):
    def __init__(self, config: HRMConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config) for _ in range(num_layers))

    def forward(self, x: Tensor, injection: Tensor, rotation: Rotation | None) -> Tensor:
        x = x + injection
        for layer in self.layers:
            x = layer(x, rotation)
        return x


class PlainHRM(nn.Module):
    """One segment; weights under the names of `hrm_model.HRM`."""

    high_init: Tensor
    low_init: Tensor
    puzzle_table: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, width))
        if config.positions == "learned":
            self.embed_positions = nn.Parameter(torch.empty(config.num_positions, width))
        self.high_level, self.low_level = Level(config, config.high_layers), Level(config, config.low_layers)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.q_head = nn.Linear(width, 2)
        for name, shape in (("high_init", (width,)), ("low_init", (width,))):
            self.register_buffer(name, torch.empty(shape))
        self.register_buffer("puzzle_table", torch.zeros(config.num_puzzle_ids, config.puzzle_vector_size))
        steps = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
        angles = torch.outer(torch.arange(config.num_positions, dtype=torch.float32), config.rope_theta**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        self.rotation = (angles.cos(), angles.sin()) if config.positions == "rope" else None

    def embed(self, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        config = self.config
        x_BND = F.embedding(tokens_BT, self.embed_tokens)
        if config.prefix_len:
            padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
            prefix = F.pad(puzzle_vector_BE, (0, padding)).view(-1, config.prefix_len, config.hidden_size)
            x_BND = torch.cat((prefix, x_BND), dim=1)
        if config.positions == "learned":
            x_BND = 0.707106781 * (x_BND + self.embed_positions)
        return math.sqrt(config.hidden_size) * x_BND

    def forward(
        self, z_high: Tensor, z_low: Tensor, tokens_BT: Tensor, puzzle_vector_BE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """New z_high and z_low (detached), logits_BTV, q_B2."""
        config = self.config
        x = self.embed(tokens_BT, puzzle_vector_BE)
        with torch.no_grad():
            for high_cycle in range(config.high_cycles):
                for low_cycle in range(config.low_cycles):
                    if not (high_cycle == config.high_cycles - 1 and low_cycle == config.low_cycles - 1):
                        z_low = self.low_level(z_low, z_high + x, self.rotation)
                if high_cycle < config.high_cycles - 1:
                    z_high = self.high_level(z_high, z_low, self.rotation)
        z_low = self.low_level(z_low, z_high + x, self.rotation)
        z_high = self.high_level(z_high, z_low, self.rotation)
        logits_BTV = self.lm_head(z_high)[:, config.prefix_len :]
        return z_high.detach(), z_low.detach(), logits_BTV, self.q_head(z_high[:, 0])
