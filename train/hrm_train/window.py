"""What one update learns from: a window of segments for some slots, and its loss. Read `window_loss`.

Shapes: B slots, E puzzle-vector width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hrm_model.hrm import HRM, SegmentOutput
from hrm_train.losses import segment_loss
from hrm_train.recipe import Recipe
from hrm_train.slots import Slots

Think = Callable[..., SegmentOutput]
"""`HRM.think`, as it is or compiled."""
Halting = Callable[..., tuple[Tensor, Tensor]]
"""`HRM.halting`, as it is or compiled."""


class Window(NamedTuple):
    """`total` sums the loss over rows and segments; the others are of the last segment."""

    total: Tensor
    exact_B: Tensor
    margin_B: Tensor


def window_loss(
    model: HRM,
    think: Think,
    halting: Halting,
    slots: Slots,
    puzzle_vector_BE: Tensor,
    recipe: Recipe,
    max_segments: int,
) -> Window:
    """Moves the slots on by the recipe's window of segments; gradients pass through all of it.

    `max_segments` is the present limit on a puzzle's segments.
    """
    totals: list[Tensor] = []
    for _ in range(recipe.window):
        output = think(slots.carry, slots.tokens_BT, puzzle_vector_BE)
        target = None
        if recipe.continue_loss:
            at_limit_B = slots.segments_B + 1 >= max_segments
            target = _value_of_going_on(halting, slots, output, puzzle_vector_BE, at_limit_B)
        loss = segment_loss(
            output.logits_BTV,
            output.q_halt_B,
            output.q_continue_B,
            slots.labels_BT,
            target,
            recipe.loss,
            recipe.label_smoothing,
        )
        totals.append(loss.total)
        slots.advance(output.carry)
    return Window(torch.stack(totals).sum(), loss.exact_B, model.margin(output))  # pyright: ignore[reportPossiblyUnboundVariable]


@torch.no_grad()
def _value_of_going_on(
    halting: Halting, slots: Slots, output: SegmentOutput, puzzle_vector_BE: Tensor, at_limit_B: Tensor
) -> Tensor:
    """Target of q_continue: the better of halting and going on after one more segment (at the limit: halting)."""
    q_halt_B, q_continue_B = halting(output.carry, slots.tokens_BT, puzzle_vector_BE)
    return torch.where(at_limit_B, q_halt_B, torch.maximum(q_halt_B, q_continue_B)).sigmoid()


def recompute_blocks(model: HRM) -> None:
    """Keeps only each block's input for the backward pass, which computes the rest again: less memory, more time."""
    for level in (model.low_level, model.high_level):
        for block in level.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
