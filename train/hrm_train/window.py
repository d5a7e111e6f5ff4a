"""What one update learns from: slots of puzzles in training, a window of segments, and its loss.

Read `window_loss` first.

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
    """`hrm_puzzles.puzzle.Hints` of the slots; IGNORE if there is nothing to know."""

    kinds_BT: Tensor
    after_BT: Tensor
    answer_after_BT: Tensor


class WindowLoss(NamedTuple):
    """Losses are sums over rows and segments; the rest describes the last segment."""

    loss: Tensor
    answer_loss: Tensor  # the answers' part of it
    exact_B: Tensor
    cells_B: Tensor  # share of open cells that are right
    margin_B: Tensor  # of halting


class SegmentLoss(NamedTuple):
    """Losses are sums over rows."""

    loss: Tensor
    answer_loss: Tensor  # the answers' part of it
    right_BT: Tensor  # cells that are right or not counted


def window_loss(
    model: HRM,
    slots: "Slots",
    puzzle_vector_BE: Tensor,
    recipe: Recipe,
    max_segments: int,
    hints: HintTensors | None = None,
) -> WindowLoss:
    """Moves the slots on by the recipe's window of segments; gradients flow through all of it.

    With hints, each segment teaches a position what can be known by then: first nothing, then its
    kind, then its label.
    """
    losses: list[Tensor] = []
    segments: list[SegmentLoss] = []
    margins: list[Tensor] = []
    open_BT = (slots.tokens_BT != slots.labels_BT) & (slots.labels_BT != IGNORE)
    for _ in range(recipe.window):
        output = model.think(slots.carry, slots.tokens_BT, puzzle_vector_BE)
        target_B = None
        if recipe.continue_loss:
            target_B = _value_of_continuing(model, slots, output, puzzle_vector_BE, max_segments)
        shown_BT, hint_loss = _hinted(model, slots, output, hints)
        found = segment_loss(output, slots.labels_BT, target_B, recipe, shown_BT)
        losses.append(found.loss + hint_loss)
        segments.append(found)
        margins.append(model.margin(output))
        slots.carry = output.carry
        slots.segments_B = slots.segments_B + 1
    right_BT = segments[-1].right_BT
    num_wrong_B = (open_BT & ~right_BT).sum(-1)
    num_open_B = open_BT.sum(-1).clamp(min=1)
    answer_losses = [found.answer_loss.detach() for found in segments]
    return WindowLoss(
        loss=torch.stack(losses).sum(),
        answer_loss=torch.stack(answer_losses).sum(),
        exact_B=right_BT.all(-1),
        cells_B=1 - num_wrong_B / num_open_B,
        margin_B=margins[-1],
    )


def _value_of_continuing(
    model: HRM, slots: "Slots", output: SegmentOutput, puzzle_vector_BE: Tensor, max_segments: int
) -> Tensor:
    """The better of halting and continuing after one more segment; at the limit, halting."""
    q_halt_B, q_continue_B = model.halting(output.carry, slots.tokens_BT, puzzle_vector_BE)
    best_B = torch.maximum(q_halt_B, q_continue_B)
    is_last_B = slots.segments_B + 1 >= max_segments
    return torch.where(is_last_B, q_halt_B, best_B).sigmoid()


def _hinted(
    model: HRM, slots: "Slots", output: SegmentOutput, hints: HintTensors | None
) -> tuple[Tensor, Tensor]:
    """The labels to learn now, and the loss of the hints."""
    if hints is None or model.hint_head is None:
        return slots.labels_BT, torch.zeros((), device=output.q_halt_B.device)
    cycles_B1 = (slots.segments_B[:, None] + 1) * model.config.high_cycles
    kinds_BT = hints.kinds_BT.where(hints.after_BT <= cycles_B1, 0)
    logits = model.hint_head(output.carry.z_low_BND)
    loss = answer_loss_B(logits, kinds_BT, "softmax").sum()
    shown_BT = slots.labels_BT.where(hints.answer_after_BT <= cycles_B1, slots.tokens_BT)
    return shown_BT, loss


def segment_loss(
    output: SegmentOutput,
    labels_BT: Tensor,
    target_continue_B: Tensor | None,
    recipe: Recipe,
    shown_BT: Tensor | None = None,
) -> SegmentLoss:
    """Answer loss plus a share of the halting losses. The trainer divides by the batch.

    The answer learns `shown_BT`, the part of the labels that can be known by now (default: all).
    q_halt learns whether the answer is exact now. q_continue learns `target_continue_B`, the value
    of continuing.
    """
    q_halt_B = output.q_halt_B
    right_BT = (output.logits_BTV.argmax(-1) == labels_BT) | (labels_BT == IGNORE)
    exact_B = right_BT.all(-1)
    if shown_BT is None:
        shown_BT = labels_BT
    smoothing = recipe.label_smoothing
    answer = answer_loss_B(output.logits_BTV, shown_BT, recipe.loss, smoothing).sum()
    halting_loss = partial(F.binary_cross_entropy_with_logits, reduction="sum")
    halt = halting_loss(q_halt_B, exact_B.to(q_halt_B.dtype))
    if target_continue_B is not None:
        halt = halt + halting_loss(output.q_continue_B, target_continue_B)
    return SegmentLoss(answer + recipe.halt_weight * halt, answer, right_BT)


def answer_loss_B(
    logits_BTV: Tensor, labels_BT: Tensor, kind: LossKind, smoothing: float = 0.0
) -> Tensor:
    """Mean cross entropy over each row's counted cells, float32 [B].

    Stablemax computes in float64, as published. A share `smoothing` of the target is spread evenly
    over all tokens.
    """
    counted_BT = labels_BT != IGNORE
    safe_BT = labels_BT.clamp(min=0).long()
    if kind == "softmax":
        logits_BVT = logits_BTV.float().transpose(1, 2)
        loss_BT = F.cross_entropy(logits_BVT, safe_BT, reduction="none", label_smoothing=smoothing)
    else:
        log_share_BTV = log_stablemax(logits_BTV.double())
        loss_BT = -log_share_BTV.gather(-1, safe_BT[..., None])[..., 0].float()
        if smoothing:
            even_BT = -log_share_BTV.mean(-1).float()
            loss_BT = torch.lerp(loss_BT, even_BT, smoothing)
    num_counted_B = counted_BT.sum(-1).clamp(min=1)
    return (loss_BT * counted_BT).sum(-1) / num_counted_B


def log_stablemax(logits: Tensor) -> Tensor:
    """log(s / sum s), a softmax that cannot overflow: s(x) = x + 1, or 1 / (1 - x) below 0."""
    below = 1 / (1 - logits.clamp(max=0) + 1e-30)
    s = torch.where(logits < 0, below, logits + 1)
    return (s / s.sum(-1, keepdim=True)).log()


@dataclass(kw_only=True)
class Slots:
    """The state of the published ACT wrapper.

    Only rows that halted are refilled, so deep supervision spans segments. Tensors are replaced,
    never written into, so a shallow copy keeps the state of that moment.
    """

    carry: Carry
    tokens_BT: Tensor
    labels_BT: Tensor
    puzzle_ids_B: Tensor
    segments_B: Tensor
    min_segments_B: Tensor
    halted_B: Tensor

    @classmethod
    def empty(
        cls,
        model: HRM,
        num_rows: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "Slots":
        """Rows that all wait for a puzzle; `dtype` is the type of all activations."""
        config = model.config

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        shape = (num_rows, config.num_positions, config.hidden_size)
        state = torch.zeros(shape, dtype=dtype, device=device)
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
        """Gives every halted row its offer.

        A share `explore` of the rows must run for 2 to `max_segments` segments. The rows are
        selected on the device, so nothing waits for it.
        """
        most = max(2, max_segments)
        draw_B = fresh.explore_draw_B
        longer_B = 2 + (draw_B / max(explore, 1e-9) * (most - 1)).int()
        minimum_B = torch.where(draw_B < explore, longer_B.clamp(max=most), 0)
        self.tokens_BT = self._taking(self.tokens_BT, fresh.tokens_BT)
        self.labels_BT = self._taking(self.labels_BT, fresh.labels_BT)
        self.puzzle_ids_B = self._taking(self.puzzle_ids_B, fresh.puzzle_ids_B)
        self.min_segments_B = self._taking(self.min_segments_B, minimum_B.int())
        self.segments_B = self.segments_B.masked_fill(self.halted_B, 0)
        dtype = self.carry.z_high_BND.dtype
        z_high_BND, z_low_BND = model.start(len(self))
        start = Carry(z_high_BND.to(dtype), z_low_BND.to(dtype))
        self.carry = self.carry.where(self.halted_B, start)
        self.halted_B = torch.zeros_like(self.halted_B)

    def _taking(self, old: Tensor, new: Tensor) -> Tensor:
        num_other_axes = old.ndim - 1
        halted = self.halted_B.view(-1, *(1,) * num_other_axes)
        return torch.where(halted, new, old)

    def halt(self, margin_B: Tensor, max_segments: int) -> None:
        """After a window: cuts the gradient and halts rows that want to or reach the limit."""
        self.carry = self.carry.detach()
        wants_B = (margin_B.detach() > 0) & (self.segments_B >= self.min_segments_B)
        self.halted_B = wants_B | (self.segments_B >= max_segments)

    def split(self, num_parts: int) -> list["Slots"]:
        """Split into parts of nearly equal size, in order; `joined` undoes it."""
        ends = [len(self) * (part + 1) // num_parts for part in range(num_parts)]
        parts: list[Slots] = []
        begin = 0
        for end in ends:
            state = {name: tensor[begin:end] for name, tensor in self.state().items()}
            parts.append(Slots.from_state(state))
            begin = end
        return parts

    @staticmethod
    def joined(parts: Sequence["Slots"]) -> "Slots":
        if len(parts) == 1:
            return replace(parts[0])
        states = [part.state() for part in parts]
        joined: dict[str, Tensor] = {}
        for name in states[0]:
            joined[name] = torch.cat([state[name] for state in states])
        return Slots.from_state(joined)

    def state(self) -> dict[str, Tensor]:
        named = {name: value for name, value in vars(self).items() if name != "carry"}
        return {**named, **self.carry._asdict()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Slots":
        carry = Carry(*(state[name] for name in Carry._fields))
        others = {name: tensor for name, tensor in state.items() if name not in Carry._fields}
        return cls(carry=carry, **others)


def recompute_blocks(model: HRM) -> None:
    """Keeps only each block's input for the backward pass, which computes the rest again.

    Takes less memory and more time.
    """
    for level in model.levels:
        for block in level.layers:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
