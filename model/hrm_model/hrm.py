"""The Hierarchical Reasoning Model: one segment, from carry to carry. Read `HRM.think` first.

The same class is the Tiny Recursive Model and the plain transformer of equal parameters (`arch`
in `config.py`). `relational.py` holds the embedding, the halting and the blocks of relational
models.

Shapes: B batch, T tokens, P prefix, N = P + T positions, D hidden, E puzzle-vector width, V
vocabulary. Source: the published models (sapientinc/HRM and
SamsungSAILMontreal/TinyRecursiveModels, 2025). With equal weights, float32 results equal theirs.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model import relational
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
    """The network. Its puzzle table is a buffer because a sparse optimizer trains its rows."""

    high_init: Tensor
    low_init: Tensor
    puzzle_table: Tensor
    _cos: Tensor
    _sin: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        width = config.num_channels
        self.embed_tokens = _vectors(config.num_token_vectors, width)
        if config.blocks == "relational" and config.puzzle_vector_size:
            self.vector_proj = Linear(config.puzzle_vector_size // config.num_symbols, width)
        if config.positions == "learned":
            self.embed_positions = _vectors(config.num_positions, width)
        block = _block_of(config)
        if config.arch != "trm":
            self.high_level = Level(config, config.high_layers, block)
        self.low_level = Level(config, config.low_layers, block)
        self.lm_head = Linear(width, config.num_answer_vectors)
        self.hint_head = None
        if config.num_hints:
            self.hint_head = Linear(config.hidden_size, config.num_hints)
        self.q_head = nn.Linear(width, 2)
        nn.init.zeros_(self.q_head.weight)
        nn.init.constant_(self.q_head.bias, INITIAL_Q)
        self._add_buffers()

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
        if self.config.arch == "trm":
            return [self.low_level]
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
        if self.config.arch == "transformer":
            state_BND = self._one_pass(x_BND)
        else:
            carry = self._recur(carry, x_BND)
            state_BND = carry.z_high_BND
        answer_matrix_VD = self.answer_matrix().to(state_BND.dtype)
        logits_BNV = F.linear(state_BND, answer_matrix_VD)
        logits_BTV = logits_BNV[:, self.config.prefix_len :]
        q_halt_B, q_continue_B = self._halting(state_BND)
        return SegmentOutput(carry, logits_BTV, q_halt_B, q_continue_B)

    @torch.no_grad()
    def halting(
        self, carry: Carry, tokens_BT: Tensor, puzzle_vector_BE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns q_halt_B and q_continue_B of one more segment, as `think` computes them."""
        x_BND = self.embed(tokens_BT, puzzle_vector_BE).to(carry.z_high_BND.dtype)
        if self.config.arch == "transformer":
            return self._halting(self._one_pass(x_BND, num_read=1))
        carry = self._recur(carry, x_BND, num_read=1)
        return self._halting(carry.z_high_BND)

    def _recur(self, carry: Carry, x_BND: Tensor, num_read: int | None = None) -> Carry:
        """Runs all cycles. The last high step computes the first `num_read` positions, or all."""
        if self.config.blocks == "relational":
            return self._relational_cycles(carry, x_BND)
        if self.config.arch == "trm":
            return self._trm_cycles(carry, x_BND, num_read)
        return self._hrm_cycles(carry, x_BND, num_read)

    def _hrm_cycles(self, carry: Carry, x_BND: Tensor, num_read: int | None) -> Carry:
        """HRM: H cycles of L low steps and a high step.

        Gradients flow through each level's last step only.
        """
        config = self.config
        rotation = self._rotation()
        z_high, z_low = carry
        with torch.no_grad():
            for _ in range(config.high_cycles - 1):
                for _ in range(config.low_cycles):
                    z_low = self.low_level(z_low + (z_high + x_BND), rotation)
                z_high = self.high_level(z_high + z_low, rotation)
            for _ in range(config.low_cycles - 1):
                z_low = self.low_level(z_low + (z_high + x_BND), rotation)
        z_low = self.low_level(z_low + (z_high + x_BND), rotation)
        z_high = self.high_level(z_high + z_low, rotation, num_read)
        return Carry(z_high, z_low)

    def _trm_cycles(self, carry: Carry, x_BND: Tensor, num_read: int | None) -> Carry:
        """TRM: the same loops with one level for both; gradients flow through the last cycle."""
        config = self.config
        rotation = self._rotation()
        z_high, z_low = carry
        with torch.no_grad():
            for _ in range(config.high_cycles - 1):
                for _ in range(config.low_cycles):
                    z_low = self.low_level(z_low + (z_high + x_BND), rotation)
                z_high = self.low_level(z_high + z_low, rotation)
        for _ in range(config.low_cycles):
            z_low = self.low_level(z_low + (z_high + x_BND), rotation)
        z_high = self.low_level(z_high + z_low, rotation, num_read)
        return Carry(z_high, z_low)

    def _relational_cycles(self, carry: Carry, x_BND: Tensor) -> Carry:
        """The loops of HRM; gradients flow through every step."""
        rotation = self._rotation()
        z_high, z_low = carry
        for _ in range(self.config.high_cycles):
            for _ in range(self.config.low_cycles):
                z_low = self.low_level(z_low + (z_high + x_BND), rotation)
            z_high = self.high_level(z_high + z_low, rotation)
        return Carry(z_high, z_low)

    def _one_pass(self, x_BND: Tensor, num_read: int | None = None) -> Tensor:
        """The baseline: an ordinary transformer made of the same blocks."""
        rotation = self._rotation()
        return self.high_level(self.low_level(x_BND, rotation), rotation, num_read)

    def _halting(self, state_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Q values of the first position; for relational blocks, the minimum over all vectors."""
        if self.config.blocks == "relational":
            q_B2 = relational.halting(state_BND, self.q_head, self.config)
        else:
            q_B2 = q_values(state_BND[:, 0], self.q_head)
        return q_B2[:, 0], q_B2[:, 1]

    def margin(self, output: SegmentOutput) -> Tensor:
        """Halting margin [B]: positive means that the model would stop."""
        if self.config.halt_rule == "q_halt":
            return output.q_halt_B
        return output.q_halt_B - output.q_continue_B

    def embed(self, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Embeds tokens and the puzzle's vector as x_BND, scaled by the root of the width."""
        config = self.config
        x_BND = F.embedding(tokens_BT, self.token_table())
        if config.blocks == "relational":
            if config.puzzle_vector_size:
                x_BND = relational.add_puzzle_vector(
                    x_BND, puzzle_vector_BE, self.vector_proj, config
                )
        elif config.prefix_len:
            x_BND = self._with_prefix(x_BND, puzzle_vector_BE)
        if config.positions == "learned":
            x_BND = math.sqrt(0.5) * (x_BND + self.embed_positions)
        return math.sqrt(config.num_channels) * x_BND

    def _with_prefix(self, x_BTD: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Puts the puzzle's vector in front of the tokens, zero-padded to whole positions."""
        config = self.config
        padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
        padded = F.pad(puzzle_vector_BE, (0, padding))
        prefix_BPD = padded.view(-1, config.prefix_len, config.hidden_size)
        return torch.cat((prefix_BPD.to(x_BTD.dtype), x_BTD), dim=1)

    def token_table(self) -> Tensor:
        """The embedding of each token [V, D]."""
        if self.config.num_symbols > 1:
            return relational.table_of_symbols(self.embed_tokens, self.config)
        return self.embed_tokens

    def answer_matrix(self) -> Tensor:
        """The matrix [V, D] from a position's state to its logits."""
        if self.config.num_symbols > 1:
            return relational.matrix_of_symbols(self.lm_head.weight, self.config)
        return self.lm_head.weight

    def _rotation(self) -> Rotation | None:
        if self.config.is_rotary:
            return self._cos, self._sin
        return None


def _vectors(count: int, width: int) -> nn.Parameter:
    """Fresh embedding vectors [count, width] of unit norm on average."""
    vectors = torch.empty(count, width)
    truncated_normal_(vectors, std=1 / math.sqrt(width))
    return nn.Parameter(vectors)


def _block_of(config: HRMConfig) -> type[nn.Module]:
    if config.blocks == "relational":
        return relational.block_of(config)
    if config.blocks == "mixer":
        return MixerBlock
    return Block
