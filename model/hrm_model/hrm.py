"""The Hierarchical Reasoning Model: one segment, from carry to carry. Read `HRM.think` first.

The same class is the Tiny Recursive Model and the plain transformer of equal parameters (`arch` in `config.py`).

Shapes: B batch, T tokens, P prefix, N = P + T positions, D hidden, E puzzle-vector width, V vocabulary.
Source: the published models (sapientinc/HRM and SamsungSAILMontreal/TinyRecursiveModels, 2025); float32 results equal
theirs for equal weights.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.layers import Level, Linear, Rotation, rotary_table, truncated_normal_
from hrm_model.relational import block_of, matrix_of_symbols, table_of_symbols


class Carry(NamedTuple):
    """The two recurrent states between segments, each [B, N, D]."""

    z_high_BND: Tensor
    z_low_BND: Tensor

    def detach(self) -> "Carry":
        return Carry(self.z_high_BND.detach(), self.z_low_BND.detach())

    def where(self, fresh_B: Tensor, start: "Carry") -> "Carry":
        """Rows that begin a new puzzle take `start`; a select, so that garbage (NaN) in a stale row cannot leak."""
        return Carry(*(torch.where(fresh_B[:, None, None], new, old) for new, old in zip(start, self, strict=True)))


class SegmentOutput(NamedTuple):
    carry: Carry
    logits_BTV: Tensor
    q_halt_B: Tensor
    q_continue_B: Tensor


class HRM(nn.Module):
    """The network. Its puzzle-embedding table is a buffer: rows are trained by their own sparse optimiser."""

    high_init: Tensor
    low_init: Tensor
    puzzle_table: Tensor
    _cos: Tensor
    _sin: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        width, has_symbols = config.num_channels, config.num_symbols > 1
        num_parts = 3 + config.num_fixed if has_symbols else config.vocab_size
        self.embed_tokens = nn.Parameter(truncated_normal_(torch.empty(num_parts, width), 1 / math.sqrt(width)))
        if config.blocks == "relational" and config.puzzle_vector_size:
            self.vector_proj = Linear(config.puzzle_vector_size // config.num_symbols, width)
        if config.positions == "learned":
            self.embed_positions = nn.Parameter(
                truncated_normal_(torch.empty(config.num_positions, width), 1 / math.sqrt(width))
            )
        if config.arch != "trm":
            self.high_level = Level(config, config.high_layers, block_of(config))
        self.low_level = Level(config, config.low_layers, block_of(config))
        self.lm_head = Linear(width, 1 if has_symbols else config.vocab_size)
        self.hint_head = Linear(config.hidden_size, config.num_hints) if config.num_hints else None
        self.q_head = nn.Linear(width, 2)
        nn.init.zeros_(self.q_head.weight)
        nn.init.constant_(self.q_head.bias, -5.0)
        start = (config.num_positions, config.hidden_size) if config.random_start else (width,)
        self.register_buffer("high_init", truncated_normal_(torch.empty(start), 1.0))
        self.register_buffer("low_init", truncated_normal_(torch.empty(start), 1.0))
        self.register_buffer("puzzle_table", torch.zeros(config.num_puzzle_ids, config.puzzle_vector_size))
        cos, sin = rotary_table(config)
        self.register_buffer("_cos", cos, persistent=False)
        self.register_buffer("_sin", sin, persistent=False)

    @property
    def levels(self) -> list[Level]:
        """High and low, or the one that is both."""
        return [self.low_level] if self.config.arch == "trm" else [self.high_level, self.low_level]

    def start(self, num_rows: int) -> Carry:
        """The state every puzzle begins with, as broadcast views [B, N, D]."""
        shape = (num_rows, self.config.num_positions, self.config.hidden_size)
        copies = shape[-1] // self.high_init.shape[-1]
        return Carry(*(init.tile(copies).expand(shape) for init in (self.high_init, self.low_init)))

    def segment(self, carry: Carry, tokens_BT: Tensor, puzzle_ids_B: Tensor) -> SegmentOutput:
        """One ACT segment. tokens_BT int [B, T], puzzle_ids_B int [B]; the new carry is detached."""
        output = self.think(carry, tokens_BT, self.puzzle_table[puzzle_ids_B])
        return output._replace(carry=output.carry.detach())

    def think(self, carry: Carry, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> SegmentOutput:
        """One segment from gathered puzzle rows; only the last calls keep a gradient (`num_learnt_steps`).

        The carry's type is the type of all activations, as published (weights stay in theirs and are cast where used).
        The new carry is still attached, so that a trainer may let gradients pass from one segment to the one before.
        """
        x_BND = self.embed(tokens_BT, puzzle_vector_BE).to(carry.z_high_BND.dtype)
        if self.config.arch == "transformer":
            state_BND = self._one_pass(x_BND)
        else:
            carry = self._recur(carry, x_BND)
            state_BND = carry.z_high_BND
        logits_BTV = F.linear(state_BND, self.answer_matrix().to(state_BND.dtype))[:, self.config.prefix_len :]
        return SegmentOutput(carry, logits_BTV, *self._halting(state_BND))

    @torch.no_grad()
    def halting(self, carry: Carry, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> tuple[Tensor, Tensor]:
        """q_halt_B and q_continue_B of one more segment, as `think` would give them, without its other outputs."""
        x_BND = self.embed(tokens_BT, puzzle_vector_BE).to(carry.z_high_BND.dtype)
        if self.config.arch == "transformer":
            return self._halting(self._one_pass(x_BND, num_read=1))
        num_read = None if self.config.blocks == "relational" else 1
        return self._halting(self._recur(carry, x_BND, num_read).z_high_BND)

    def _recur(self, carry: Carry, x_BND: Tensor, num_read: int | None = None) -> Carry:
        """All cycles; of the last high call only the first `num_read` positions where given."""
        config, rotation, high_level = self.config, self._rotation(), self.levels[0]
        num_steps = config.high_cycles * config.low_cycles
        first = num_steps - config.num_learnt_steps
        z_high, z_low = carry
        for steps, is_learnt in ((range(first), False), (range(first, num_steps), True)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and is_learnt):
                for step in steps:
                    z_low = self.low_level(z_low + (z_high + x_BND), rotation)
                    if (step + 1) % config.low_cycles == 0:
                        read = num_read if step + 1 == num_steps else None
                        z_high = high_level(z_high + z_low, rotation, read)
        return Carry(z_high, z_low)

    def _one_pass(self, x_BND: Tensor, num_read: int | None = None) -> Tensor:
        """The baseline: an ordinary transformer made of the same blocks."""
        rotation = self._rotation()
        return self.high_level(self.low_level(x_BND, rotation), rotation, num_read)

    def _halting(self, state_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Of the first position; where every position (and symbol) is like any other, the least of all."""
        is_relational = self.config.blocks == "relational"
        read = state_BND.reshape(len(state_BND), -1, self.config.num_channels) if is_relational else state_BND[:, 0]
        q = F.linear(read.float(), self.q_head.weight.float(), self.q_head.bias.float())
        q_B2 = q.amin(1) if is_relational else q
        return q_B2[:, 0], q_B2[:, 1]

    def margin(self, output: SegmentOutput) -> Tensor:
        """Halting margin [B]: positive means that the model would stop."""
        return output.q_halt_B if self.config.halt_rule == "q_halt" else output.q_halt_B - output.q_continue_B

    def embed(self, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Puzzle prefix, then tokens, plus learned positions where configured; scaled by sqrt(D) last.

        In place of a prefix each symbol of every cell of relational blocks is told its part of the puzzle's vector.
        """
        config = self.config
        x_BND = F.embedding(tokens_BT, self.token_table())
        if config.prefix_len:
            padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
            prefix = F.pad(puzzle_vector_BE, (0, padding)).view(-1, config.prefix_len, config.hidden_size)
            x_BND = torch.cat((prefix.to(x_BND.dtype), x_BND), dim=1)
        elif config.puzzle_vector_size:
            parts_BSE = puzzle_vector_BE.unflatten(1, (config.num_symbols, -1))
            x_BND = x_BND + self.vector_proj(parts_BSE).flatten(1)[:, None]
        if config.positions == "learned":
            x_BND = math.sqrt(0.5) * (x_BND + self.embed_positions)
        return math.sqrt(config.num_channels) * x_BND

    def token_table(self) -> Tensor:
        """What each token is embedded as [V, D]."""
        return table_of_symbols(self.embed_tokens, self.config) if self.config.num_symbols > 1 else self.embed_tokens

    def answer_matrix(self) -> Tensor:
        """From a position's state to its logits [V, D]."""
        weight = self.lm_head.weight
        return matrix_of_symbols(weight, self.config) if self.config.num_symbols > 1 else weight

    def _rotation(self) -> Rotation | None:
        return (self._cos, self._sin) if self.config.is_rotary else None
