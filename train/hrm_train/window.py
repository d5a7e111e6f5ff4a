"""What one update learns from: slots of puzzles in training, a window of segments, and its loss. Read `window_loss`.

Shapes: B slots, T tokens, V vocabulary, N positions, D hidden, E puzzle-vector width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_puzzles.data.datasets import IGNORE
from hrm_train.batches import Offer
from hrm_train.recipe import LossKind, Recipe


class HintTensors(NamedTuple):
    """`hrm_puzzles.puzzle.Hints` of the slots, IGNORE where there is nothing to know."""

    kinds_BT: Tensor
    after_BT: Tensor
    answer_after_BT: Tensor


class WindowLoss(NamedTuple):
    """Losses are summed over rows and segments; the rest is of the last segment."""

    loss: Tensor
    answer_loss: Tensor  # the answers' part of it
    exact_B: Tensor
    cells_B: Tensor  # share of right cells among the open ones
    margin_B: Tensor  # of halting


def window_loss(
    model: HRM,
    slots: "Slots",
    puzzle_vector_BE: Tensor,
    recipe: Recipe,
    max_segments: int,
    hints: HintTensors | None = None,
) -> WindowLoss:
    """Moves the slots on by the recipe's window of segments; gradients pass through all of it.

    With hints a position learns what it can know by then: nothing, its kind, and its label last of all.
    """
    learnt: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    open_BT = (slots.tokens_BT != slots.labels_BT) & (slots.labels_BT != IGNORE)
    for _ in range(recipe.window):
        output = model.think(slots.carry, slots.tokens_BT, puzzle_vector_BE)
        target_B = None
        if recipe.continue_loss:  # the better of halting and going on after one more segment (at the limit: halting)
            q_halt_B, q_continue_B = model.halting(output.carry, slots.tokens_BT, puzzle_vector_BE)
            best_B = torch.maximum(q_halt_B, q_continue_B)
            target_B = torch.where(slots.segments_B + 1 >= max_segments, q_halt_B, best_B).sigmoid()
        shown_BT, hint_loss = slots.labels_BT, torch.zeros((), device=output.q_halt_B.device)
        if hints is not None and model.hint_head is not None:
            cycles_B1 = (slots.segments_B[:, None] + 1) * model.config.high_cycles
            kinds_BT = hints.kinds_BT.where(hints.after_BT <= cycles_B1, 0)
            hint_loss = answer_loss_B(model.hint_head(output.carry.z_low_BND), kinds_BT, "softmax").sum()
            shown_BT = shown_BT.where(hints.answer_after_BT <= cycles_B1, slots.tokens_BT)
        loss, answer_loss, right_BT = segment_loss(output, slots.labels_BT, target_B, recipe, shown_BT)
        loss = loss + hint_loss
        learnt.append((loss, answer_loss.detach(), right_BT, model.margin(output)))
        slots.carry, slots.segments_B = output.carry, slots.segments_B + 1
    losses, answer_losses, _, _ = zip(*learnt, strict=True)
    *_, right_BT, margin_B = learnt[-1]
    return WindowLoss(
        loss=torch.stack(losses).sum(),
        answer_loss=torch.stack(answer_losses).sum(),
        exact_B=right_BT.all(-1),
        cells_B=1 - (open_BT & ~right_BT).sum(-1) / open_BT.sum(-1).clamp(min=1),
        margin_B=margin_B,
    )


def segment_loss(
    output: SegmentOutput,
    labels_BT: Tensor,
    target_continue_B: Tensor | None,
    recipe: Recipe,
    shown_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer loss plus a share of the halting losses, summed over rows (the trainer divides by the batch).

    The answer learns `shown_BT`, where given: what can be known of the labels by now. q_halt learns whether it is exact
    now, and q_continue `target_continue_B`, the value of going on.
    Also returns the answer loss alone, and which cells are right or not counted.
    """
    q_halt_B, right_BT = output.q_halt_B, (output.logits_BTV.argmax(-1) == labels_BT) | (labels_BT == IGNORE)
    exact_B = right_BT.all(-1)
    answer = answer_loss_B(
        output.logits_BTV, labels_BT if shown_BT is None else shown_BT, recipe.loss, recipe.label_smoothing
    ).sum()
    halt = F.binary_cross_entropy_with_logits(q_halt_B, exact_B.to(q_halt_B.dtype), reduction="sum")
    if target_continue_B is not None:
        halt = halt + F.binary_cross_entropy_with_logits(output.q_continue_B, target_continue_B, reduction="sum")
    return answer + recipe.halt_weight * halt, answer, right_BT


def answer_loss_B(logits_BTV: Tensor, labels_BT: Tensor, kind: LossKind, smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy over each row's counted cells, float32 [B] (float64 inside stablemax, as published).

    A share `smoothing` of the target is spread evenly over all tokens.
    """
    counted_BT = labels_BT != IGNORE
    safe_BT = labels_BT.clamp(min=0).long()
    if kind == "softmax":
        loss_BT = F.cross_entropy(
            logits_BTV.float().transpose(1, 2), safe_BT, reduction="none", label_smoothing=smoothing
        )
    else:
        log_share_BTV = log_stablemax(logits_BTV.double())
        loss_BT = -log_share_BTV.gather(-1, safe_BT[..., None])[..., 0].float()
        if smoothing:
            loss_BT = torch.lerp(loss_BT, -log_share_BTV.mean(-1).float(), smoothing)
    return (loss_BT * counted_BT).sum(-1) / counted_BT.sum(-1).clamp(min=1)


def log_stablemax(logits: Tensor) -> Tensor:
    """log(s / sum s) with s(x) = x + 1 for x >= 0 and 1 / (1 - x) below: a softmax that cannot overflow."""
    s = torch.where(logits < 0, 1 / (1 - logits.clamp(max=0) + 1e-30), logits + 1)
    return (s / s.sum(-1, keepdim=True)).log()


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
    def empty(cls, model: HRM, num_rows: int, device: torch.device, dtype: torch.dtype = torch.float32) -> "Slots":
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

    def refill(self, model: HRM, fresh: Offer, explore: float, max_segments: int) -> None:
        """Gives every halted row its offer; a share `explore` of them must think for 2 to `max_segments` segments.

        Selects instead of looking which rows those are, so that a device is not waited for.
        """
        most = max(2, max_segments)
        longer_B = 2 + (fresh.explore_draw_B / max(explore, 1e-9) * (most - 1)).int()
        minimum_B = torch.where(fresh.explore_draw_B < explore, longer_B.clamp(max=most), 0)
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

    def halt(self, margin_B: Tensor, max_segments: int) -> None:
        """After a window: cut the gradient, and halt where the model says so or the limit is reached."""
        self.carry = self.carry.detach()
        wants_B = (margin_B.detach() > 0) & (self.segments_B >= self.min_segments_B)
        self.halted_B = wants_B | (self.segments_B >= max_segments)

    def split(self, num_parts: int) -> list["Slots"]:
        """Parts of (nearly) equal size, in order; `joined` undoes it."""
        sizes = [len(self) * (i + 1) // num_parts - len(self) * i // num_parts for i in range(num_parts)]
        named = {name: tensor.split(sizes) for name, tensor in self.state().items()}
        return [Slots.from_state({name: parts[i] for name, parts in named.items()}) for i in range(num_parts)]

    @staticmethod
    def joined(parts: Sequence["Slots"]) -> "Slots":
        if len(parts) == 1:
            return replace(parts[0])
        states = [part.state() for part in parts]
        return Slots.from_state({name: torch.cat([state[name] for state in states]) for name in states[0]})

    def state(self) -> dict[str, Tensor]:
        named = {name: value for name, value in vars(self).items() if name != "carry"}
        return {**named, **self.carry._asdict()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Slots":
        named = {name: tensor for name, tensor in state.items() if name not in Carry._fields}
        return cls(carry=Carry(*(state[name] for name in Carry._fields)), **named)


def recompute_blocks(model: HRM) -> None:
    """Keeps only each block's input for the backward pass, which computes the rest again: less memory, more time."""
    for level in model.levels:
        for block in level.layers:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
