"""The rows in training: each holds one puzzle from its first segment until the model (or the limit) halts it.

Shapes: B batch, T tokens, N positions, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hrm_model.hrm import HRM, Carry
from hrm_train.batches import Curriculum, Feed, generator_at


@dataclass(kw_only=True)
class Slots:
    """The published ACT wrapper's state; only rows that halted are refilled, so deep supervision spans segments."""

    carry: Carry
    tokens_BT: Tensor
    labels_BT: Tensor
    puzzle_ids_B: Tensor
    segments_B: Tensor
    min_segments_B: Tensor
    halted_B: Tensor

    @classmethod
    def empty(cls, model: HRM, num_rows: int, device: torch.device) -> Slots:
        config = model.config

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        state = torch.zeros(num_rows, config.num_positions, config.hidden_size, device=device)
        return cls(
            carry=Carry(state, state.clone()),
            tokens_BT=zeros(num_rows, config.seq_len),
            labels_BT=zeros(num_rows, config.seq_len),
            puzzle_ids_B=zeros(num_rows),
            segments_B=zeros(num_rows),
            min_segments_B=zeros(num_rows),
            halted_B=torch.ones(num_rows, dtype=torch.bool, device=device),
        )

    def refill(self, model: HRM, feed: Feed, step: int, num_revealed: int, explore: float) -> None:
        """Gives every halted row a new puzzle; a share `explore` of them must think for a random number of segments."""
        halted = self.halted_B.nonzero()[:, 0]
        num_rows = len(halted)
        if not num_rows:
            return
        rows = feed.draw(step, num_rows, num_revealed)
        for target, values in zip((self.tokens_BT, self.labels_BT, self.puzzle_ids_B), rows, strict=True):
            target[halted] = torch.from_numpy(values).to(target.device)
        self.segments_B[halted] = 0
        rng = generator_at(feed.seed, step, purpose=1)
        minimum = rng.integers(2, max(3, model.config.max_segments + 1), size=num_rows)
        minimum = np.where(rng.random(num_rows) < explore, minimum, 0).astype(np.int32)
        self.min_segments_B[halted] = torch.from_numpy(minimum).to(halted.device)
        self.carry = self.carry.where(self.halted_B, model.start(len(self.halted_B)))

    def advance(self, carry: Carry) -> None:
        """After a segment: keep the new state and count."""
        self.carry = carry
        self.segments_B += 1

    def halt(self, margin_B: Tensor, max_segments: int) -> None:
        """After a window: cut the gradient, and halt where the model says so or the limit is reached."""
        self.carry = self.carry.detach()
        wants_B = (margin_B.detach() > 0) & (self.segments_B >= self.min_segments_B)
        self.halted_B = wants_B | (self.segments_B >= max_segments)

    def report(self, exact_B: Tensor, curriculum: Curriculum) -> None:
        """Tells the curriculum how the rows that just halted ended."""
        curriculum.see(int((exact_B & self.halted_B).sum()), int(self.halted_B.sum()))

    def state(self) -> dict[str, Tensor]:
        named = {name: value for name, value in vars(self).items() if name != "carry"}
        return {**named, **self.carry._asdict()}

    def restore(self, state: dict[str, Tensor]) -> None:
        device = self.halted_B.device
        for name in vars(self):
            if name != "carry":
                setattr(self, name, state[name].to(device))
        self.carry = Carry(*(state[name].to(device) for name in Carry._fields))
