"""The published training loss: answers under deep supervision, and the two halting values.

Shapes: B batch, T tokens, V vocabulary. Labels equal to IGNORE do not count.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hrm_puzzles.data.datasets import IGNORE

LossKind = Literal["softmax", "stablemax"]


class SegmentLoss(NamedTuple):
    """Sums over the batch, and what they were made of per row."""

    total: Tensor
    answer: Tensor
    halt: Tensor
    exact_B: Tensor
    """Every counted cell is right."""


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


def segment_loss(
    logits_BTV: Tensor,
    q_halt_B: Tensor,
    q_continue_B: Tensor,
    labels_BT: Tensor,
    target_continue_B: Tensor | None,
    kind: LossKind,
    smoothing: float = 0.0,
) -> SegmentLoss:
    """Answer loss plus half the halting losses, summed over rows (the trainer divides by the batch).

    q_halt learns whether the answer is exact now; q_continue learns `target_continue_B`, the value of going on.
    """
    counted_BT = labels_BT != IGNORE
    exact_B = ((logits_BTV.argmax(-1) == labels_BT) | ~counted_BT).all(-1)
    answer = answer_loss_B(logits_BTV, labels_BT, kind, smoothing).sum()
    halt = F.binary_cross_entropy_with_logits(q_halt_B, exact_B.to(q_halt_B.dtype), reduction="sum")
    if target_continue_B is not None:
        halt = halt + F.binary_cross_entropy_with_logits(q_continue_B, target_continue_B, reduction="sum")
    return SegmentLoss(answer + 0.5 * halt, answer.detach(), halt.detach(), exact_B)
