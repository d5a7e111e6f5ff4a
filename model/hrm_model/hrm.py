"""The Hierarchical Reasoning Model: one segment, from carry to carry. Read `HRM.think` first.

`families.py` holds the Tiny Recursive Model, the plain transformer of equal parameters, and the
models whose blocks know a puzzle's relations; `model_of` chooses one.

Shapes: B batch, T tokens, P prefix, N = P + T positions, D hidden, E puzzle-vector width, V
vocabulary. Source: the published models (sapientinc/HRM and
SamsungSAILMontreal/TinyRecursiveModels, 2025). With equal weights, float32 results equal theirs.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.layers import (
    Block,
    Level,
    Linear,
    MixerBlock,
    Rotation,
    q_values,
    rotary_table,
    truncated_normal_,
)

INITIAL_Q = -5.0  # bias of both Q values, as published: an untrained model never wants to halt


class Carry(NamedTuple):
    """The two recurrent states between segments, each [B, N, D]."""

    z_high_BND: Tensor
    z_low_BND: Tensor

    def detach(self) -> "Carry":
        return Carry(self.z_high_BND.detach(), self.z_low_BND.detach())

    def where(self, fresh_B: Tensor, start: "Carry") -> "Carry":
        """Replaces the rows that begin a new puzzle by `start`.

        It selects instead of multiplying, so NaN in a stale row cannot leak.
        """
        fresh_B11 = fresh_B[:, None, None]
        z_high_BND = torch.where(fresh_B11, start.z_high_BND, self.z_high_BND)
        z_low_BND = torch.where(fresh_B11, start.z_low_BND, self.z_low_BND)
        return Carry(z_high_BND, z_low_BND)


class SegmentOutput(NamedTuple):
    carry: Carry
    logits_BTV: Tensor
    q_halt_B: Tensor
    q_continue_B: Tensor


class HRM(nn.Module):
    """The network. Its puzzle table is a buffer because a sparse optimizer trains its rows.

    `model_of` in `families.py` returns the family of a configuration; the families override what
    differs: the embedding, the levels, the way through them, and halting.
    """

    family = "hrm"
    high_init: Tensor
    low_init: Tensor
    puzzle_table: Tensor
    _cos: Tensor
    _sin: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        width = config.num_channels
        self._add_embedding()
        self._add_levels()
        # All symbols share one row.
        num_rows = 1 if config.num_symbols > 1 else config.vocab_size
        self.lm_head = Linear(width, num_rows)
        self.hint_head = None
        if config.num_hints:
            self.hint_head = Linear(config.hidden_size, config.num_hints)
        self.q_head = nn.Linear(width, 2)
        nn.init.zeros_(self.q_head.weight)
        nn.init.constant_(self.q_head.bias, INITIAL_Q)
        self._add_buffers()

    def _add_embedding(self) -> None:
        config = self.config
        num_vectors = config.vocab_size
        if config.num_symbols > 1:
            num_vectors = 3 + config.num_fixed  # one per symbol state and fixed symbol
        self.embed_tokens = vectors(num_vectors, config.num_channels)
        if config.positions == "learned":
            self.embed_positions = vectors(config.num_positions, config.num_channels)

    def _add_levels(self) -> None:
        self.high_level = Level(self.config, self.config.high_layers, self._block)
        self.low_level = Level(self.config, self.config.low_layers, self._block)

    @property
    def _block(self) -> Callable[[HRMConfig], nn.Module]:
        if self.config.blocks == "mixer":
            return MixerBlock
        return Block

    def _add_buffers(self) -> None:
        config = self.config
        start: tuple[int, ...] = (config.num_channels,)
        if config.random_start:
            start = (config.num_positions, config.hidden_size)
        table_size = (config.num_puzzle_ids, config.puzzle_vector_size)
        self.register_buffer("high_init", truncated_normal_(torch.empty(start), 1.0))
        self.register_buffer("low_init", truncated_normal_(torch.empty(start), 1.0))
        self.register_buffer("puzzle_table", torch.zeros(table_size))
        cos, sin = rotary_table(config)
        self.register_buffer("_cos", cos, persistent=False)
        self.register_buffer("_sin", sin, persistent=False)

    @property
    def num_parameters(self) -> int:
        """Learned weights, without the puzzle table and the fixed start of the carry."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def levels(self) -> list[Level]:
        """The high and the low level; a TRM has one level for both."""
        return [self.high_level, self.low_level]

    def start(self, num_rows: int) -> Carry:
        """The state in which every puzzle begins, as broadcast views [B, N, D]."""
        shape = (num_rows, self.config.num_positions, self.config.hidden_size)
        copies = self.config.hidden_size // self.high_init.shape[-1]
        z_high_BND = self.high_init.tile(copies).expand(shape)
        z_low_BND = self.low_init.tile(copies).expand(shape)
        return Carry(z_high_BND, z_low_BND)

    def segment(self, carry: Carry, tokens_BT: Tensor, puzzle_ids_B: Tensor) -> SegmentOutput:
        """Runs one ACT segment of int tokens and puzzle ids; detaches the new carry."""
        output = self.think(carry, tokens_BT, self.puzzle_table[puzzle_ids_B])
        return output._replace(carry=output.carry.detach())

    def think(self, carry: Carry, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> SegmentOutput:
        """Runs one segment from gathered puzzle rows. Only the last steps keep a gradient.

        All activations take the carry's type, as published. Weights are cast at each use.
        The new carry is still attached, so gradients can flow back to the previous segment.
        """
        x_BND = self.embed(tokens_BT, puzzle_vector_BE).to(carry.z_high_BND.dtype)
        carry, state_BND = self._advance(carry, x_BND)
        answer_matrix_VD = self.answer_matrix().to(state_BND.dtype)
        logits_BNV = F.linear(state_BND, answer_matrix_VD)
        logits_BTV = logits_BNV[:, self.config.prefix_len :]
        q_B2 = self._q_values(state_BND)
        return SegmentOutput(carry, logits_BTV, q_B2[:, 0], q_B2[:, 1])

    @torch.no_grad()
    def halting(
        self, carry: Carry, tokens_BT: Tensor, puzzle_vector_BE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns q_halt_B and q_continue_B of one more segment."""
        output = self.think(carry, tokens_BT, puzzle_vector_BE)
        return output.q_halt_B, output.q_continue_B

    def _advance(self, carry: Carry, x_BND: Tensor) -> tuple[Carry, Tensor]:
        """Runs H cycles of L low steps and a high step; returns the new carry and the state to
        read.

        Only the last `num_learnt_steps` low steps, and their high steps, keep a gradient.
        """
        num_steps = self.config.high_cycles * self.config.low_cycles
        num_free = num_steps - self.config.num_learnt_steps
        with torch.no_grad():
            carry = self._steps(carry, x_BND, range(num_free))
        carry = self._steps(carry, x_BND, range(num_free, num_steps))
        return carry, carry.z_high_BND

    def _steps(self, carry: Carry, x_BND: Tensor, steps: range) -> Carry:
        """Runs the low steps with these numbers, and a high step at the end of each cycle."""
        low_cycles = self.config.low_cycles
        rotation = self._rotation()
        z_high, z_low = carry
        for step in steps:
            z_low = self.low_level(z_low + (z_high + x_BND), rotation)
            if (step + 1) % low_cycles == 0:
                z_high = self.levels[0](z_high + z_low, rotation)
        return Carry(z_high, z_low)

    def _q_values(self, state_BND: Tensor) -> Tensor:
        """Q values [B, 2] of the first position."""
        return q_values(state_BND[:, 0], self.q_head)

    def margin(self, output: SegmentOutput) -> Tensor:
        """Halting margin [B]: positive means that the model would stop."""
        if self.config.halt_rule == "q_halt":
            return output.q_halt_B
        return output.q_halt_B - output.q_continue_B

    def embed(self, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Embeds tokens and the puzzle's vector as x_BND, scaled by the root of the width."""
        x_BTD = F.embedding(tokens_BT, self.token_table())
        x_BND = self._with_vector(x_BTD, puzzle_vector_BE)
        if self.config.positions == "learned":
            x_BND = math.sqrt(0.5) * (x_BND + self.embed_positions)
        return math.sqrt(self.config.num_channels) * x_BND

    def _with_vector(self, x_BTD: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Puts the puzzle's vector in front of the tokens, zero-padded to whole positions."""
        config = self.config
        if not config.prefix_len:
            return x_BTD
        padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
        padded = F.pad(puzzle_vector_BE, (0, padding))
        prefix_BPD = padded.view(-1, config.prefix_len, config.hidden_size)
        return torch.cat((prefix_BPD.to(x_BTD.dtype), x_BTD), dim=1)

    def token_table(self) -> Tensor:
        """The embedding of each token [V, D]."""
        return self.embed_tokens

    def answer_matrix(self) -> Tensor:
        """The matrix [V, D] from a position's state to its logits."""
        return self.lm_head.weight

    def _rotation(self) -> Rotation | None:
        if self.config.is_rotary:
            return self._cos, self._sin
        return None


def vectors(count: int, width: int) -> nn.Parameter:
    """Fresh embedding vectors [count, width] of unit norm on average."""
    fresh = torch.empty(count, width)
    truncated_normal_(fresh, std=1 / math.sqrt(width))
    return nn.Parameter(fresh)
