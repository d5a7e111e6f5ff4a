"""The published optimisers, in plain PyTorch: AdamATan2 for the network, sign descent for the puzzle table.

The torch._foreach calls are what PyTorch's own optimisers are made of: one call for all parameters.

Source: AdamATan2 (Everett et al., 2024; adam-atan2 0.0.3) and the sparse embedding optimiser of the published HRM.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class AdamATan2(torch.optim.Optimizer):
    """Adam whose quotient m / sqrt(v) passes through atan2, so that no epsilon is needed and steps are bounded.

    w *= 1 - lr * wd;  w -= lr / (1 - b1^t) * atan2(m, sqrt(v) / sqrt(1 - b2^t)).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        if lr < 0 or weight_decay < 0:
            raise ValueError(f"lr {lr} and weight_decay {weight_decay} must not be negative; use 0 to switch one off")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None, "closures are not used with AdamATan2"
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for parameter in params:
                if not self.state[parameter]:
                    self.state[parameter] = {
                        "step": torch.zeros(()),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            if params:
                self._update(params, group["lr"], group["betas"], group["weight_decay"])

    def _update(self, params: list[Tensor], lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        beta1, beta2 = betas
        states = [self.state[p] for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        first = [s["exp_avg"] for s in states]
        second = [s["exp_avg_sq"] for s in states]
        for state in states:
            state["step"] += 1
        step = int(states[0]["step"])
        torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        scale = lr / (1 - beta1**step)
        root = math.sqrt(1 - beta2**step)
        for parameter, m, v in zip(params, first, second, strict=True):
            parameter.sub_(torch.atan2(m, v.sqrt() / root), alpha=scale)


@torch.no_grad()
def step_puzzle_table(table: Tensor, puzzle_ids_B: Tensor, gradient_BE: Tensor, lr: float, weight_decay: float) -> None:
    """Sign descent on the rows the batch touched, in place: w = w (1 - lr wd) - lr sign(sum of the row's gradients)."""
    ids, inverse = torch.unique(puzzle_ids_B, return_inverse=True)
    gradients = torch.zeros_like(table[ids]).index_add_(0, inverse, gradient_BE)
    table[ids] = table[ids] * (1 - lr * weight_decay) - lr * gradients.sign()


class Average:
    """Exponential moving average of all floating-point entries of a model's state."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """`step` from 1; early steps average over less, so that the random start is forgotten quickly."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        mine, new = list(self.state.values()), [t.detach() for t in model.state_dict().values()]
        torch._foreach_lerp_(mine, new, weight)


def rate_at(samples: int, *, total: int, warmup: int, min_ratio: float) -> float:
    """Share of the base rate after `samples` samples: linear warm-up, then a cosine to `min_ratio` (1 = constant)."""
    if samples < warmup:
        return samples / warmup
    progress = min(1.0, (samples - warmup) / max(1, total - warmup))
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
