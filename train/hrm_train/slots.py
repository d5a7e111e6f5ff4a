"""The rows in training: each holds one puzzle from its first segment until the model (or the limit) halts it.

Shapes: B slots, T tokens, N positions, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hrm_model.hrm import HRM, Carry


class Fresh(NamedTuple):
    """An offer (see batches.Offer) on the device."""

    tokens_BT: Tensor
    labels_BT: Tensor
    puzzle_ids_B: Tensor
    patience_B: Tensor

    def rows(self, part: slice) -> Fresh:
        return Fresh(*(tensor[part] for tensor in self))


@dataclass(kw_only=True)
class Slots:
    """The published ACT wrapper's state; only rows that halted are refilled, so deep supervision spans segments.

    Tensors are replaced, never written into, so that a shallow copy is the state of that moment.
    """

    carry: Carry
    tokens_BT: Tensor
    labels_BT: Tensor
    puzzle_ids_B: Tensor
    segments_B: Tensor
    min_segments_B: Tensor
    halted_B: Tensor

    @classmethod
    def empty(cls, model: HRM, num_rows: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Slots:
        """Rows that all wait for a puzzle; `dtype` is that of the state, and so of all activations."""
        config = model.config

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        state = torch.zeros(num_rows, config.num_positions, config.hidden_size, dtype=dtype, device=device)
        return cls(
            carry=Carry(state, state.clone()),
            tokens_BT=zeros(num_rows, config.seq_len),
            labels_BT=zeros(num_rows, config.seq_len),
            puzzle_ids_B=zeros(num_rows),
            segments_B=zeros(num_rows),
            min_segments_B=zeros(num_rows),
            halted_B=torch.ones(num_rows, dtype=torch.bool, device=device),
        )

    def __len__(self) -> int:
        return len(self.halted_B)

    def refill(self, model: HRM, fresh: Fresh, explore: float, max_segments: int) -> None:
        """Gives every halted row its offer; a share `explore` of them must think for 2 to `max_segments` segments.

        Selects instead of looking which rows those are, so that a device is not waited for.
        """
        most = max(2, max_segments)
        longer_B = 2 + (fresh.patience_B / max(explore, 1e-9) * (most - 1)).int()
        minimum_B = torch.where(fresh.patience_B < explore, longer_B.clamp(max=most), 0)
        self.tokens_BT = self._taking(self.tokens_BT, fresh.tokens_BT)
        self.labels_BT = self._taking(self.labels_BT, fresh.labels_BT)
        self.puzzle_ids_B = self._taking(self.puzzle_ids_B, fresh.puzzle_ids_B)
        self.min_segments_B = self._taking(self.min_segments_B, minimum_B.int())
        self.segments_B = self.segments_B.masked_fill(self.halted_B, 0)
        dtype = self.carry.z_high_BND.dtype
        start = Carry(*(state.to(dtype) for state in model.start(len(self))))
        self.carry = self.carry.where(self.halted_B, start)
        self.halted_B = torch.zeros_like(self.halted_B)

    def _taking(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.where(self.halted_B.view(-1, *(1,) * (old.ndim - 1)), new, old)

    def advance(self, carry: Carry) -> None:
        """After a segment: keep the new state and count."""
        self.carry = carry
        self.segments_B = self.segments_B + 1

    def halt(self, margin_B: Tensor, max_segments: int) -> None:
        """After a window: cut the gradient, and halt where the model says so or the limit is reached."""
        self.carry = self.carry.detach()
        wants_B = (margin_B.detach() > 0) & (self.segments_B >= self.min_segments_B)
        self.halted_B = wants_B | (self.segments_B >= max_segments)

    def split(self, num_parts: int) -> list[Slots]:
        """Parts of (nearly) equal size, in order; `joined` undoes it."""
        sizes = [len(self) * (i + 1) // num_parts - len(self) * i // num_parts for i in range(num_parts)]
        named = {name: tensor.split(sizes) for name, tensor in self.state().items()}
        return [Slots.from_state({name: parts[i] for name, parts in named.items()}) for i in range(num_parts)]

    @staticmethod
    def joined(parts: Sequence[Slots]) -> Slots:
        if len(parts) == 1:
            return replace(parts[0])
        states = [part.state() for part in parts]
        return Slots.from_state({name: torch.cat([state[name] for state in states]) for name in states[0]})

    def state(self) -> dict[str, Tensor]:
        named = {name: value for name, value in vars(self).items() if name != "carry"}
        return {**named, **self.carry._asdict()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Slots:
        named = {name: tensor for name, tensor in state.items() if name not in Carry._fields}
        return cls(carry=Carry(*(state[name] for name in Carry._fields)), **named)
