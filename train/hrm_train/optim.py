"""The published optimisers, in plain PyTorch: AdamATan2 for the network, sign descent for the puzzle table.

The torch._foreach calls, one for all parameters, are what PyTorch's own optimisers are made of.
Sources: AdamATan2 (Everett et al., 2024; adam-atan2 0.0.3), the sparse embedding optimiser of the published HRM, and
AdamW (Loshchilov and Hutter, 2019).
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class AdamATan2:
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
        self.lr, self.betas, self.weight_decay, self.num_steps = lr, betas, weight_decay, 0
        self.params: list[Tensor] = list(params)
        self.exp_avg = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.exp_avg_sq = [torch.zeros_like(p, requires_grad=False) for p in self.params]

    @torch.no_grad()
    def step(self, rate: float = 1.0, keep: Tensor | None = None) -> None:
        """One update of every parameter with `rate` times the learning rate, from finite gradients; frees those.

        `keep` 0 (a tensor on the device, which is not waited for) changes nothing; the gradients must then be zeros.
        """
        keep = torch.ones((), device=self.params[0].device) if keep is None else keep
        self.num_steps += 1
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        self._move(gradients, self.lr * rate, keep)
        self.forget_gradients()

    def _move(self, gradients: list[Tensor], lr: float, keep: Tensor) -> None:
        (beta1, beta2), params = self.betas, self.params
        torch._foreach_mul_(params, 1 - lr * self.weight_decay * keep)
        torch._foreach_mul_(self.exp_avg, 1 - (1 - beta1) * keep)
        torch._foreach_add_(self.exp_avg, gradients, alpha=1 - beta1)
        torch._foreach_mul_(self.exp_avg_sq, 1 - (1 - beta2) * keep)
        torch._foreach_addcmul_(self.exp_avg_sq, gradients, gradients, value=1 - beta2)
        scale = -lr / (1 - beta1**self.num_steps) * keep
        root = math.sqrt(1 - beta2**self.num_steps)
        for parameter, m, v in zip(params, self.exp_avg, self.exp_avg_sq, strict=True):
            parameter.addcmul_(torch.atan2(m, v.sqrt().div_(root)), scale)

    def forget_gradients(self) -> None:
        for parameter in self.params:
            parameter.grad = None


class AdamW(AdamATan2):
    """PyTorch's fused kernel, which itself leaves out an update that is not kept."""

    def _move(self, gradients: list[Tensor], lr: float, keep: Tensor) -> None:
        steps = [torch.full_like(keep, self.num_steps)] * len(self.params)
        torch._fused_adamw_(
            self.params,
            gradients,
            self.exp_avg,
            self.exp_avg_sq,
            [],
            steps,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
            found_inf=1 - keep,
        )


OPTIMISERS = {"adam_atan2": AdamATan2, "adamw": AdamW}


@torch.no_grad()
def clip_(params: Sequence[Tensor], most: float) -> tuple[Tensor, Tensor]:
    """Scales gradients to a norm of at most `most` (0: any), and to zeros where it is not finite.

    Returns the norm before, and 1 where it is finite, else 0; the device is not waited for.
    """
    norm = nn.utils.clip_grad_norm_(params, most or math.inf)
    finite = norm.isfinite()
    for parameter in params:
        if parameter.grad is not None:
            parameter.grad = torch.where(finite, parameter.grad, 0)
    return norm, finite.to(norm.dtype)


@torch.no_grad()
def step_puzzle_table(
    table: Tensor, puzzle_ids_B: Tensor, gradient_BE: Tensor, lr: float | Tensor, decay: float
) -> None:
    """Sign descent on the rows the batch touched, in place: w = w (1 - lr decay) - lr sign(sum of the row's gradients).

    Equal ids write equal values, so that no device is asked how many distinct ones there are.
    """
    ids_B, order_B = torch.sort(puzzle_ids_B.long(), stable=True)
    begins_B = torch.ones_like(ids_B)
    begins_B[1:] = (ids_B[1:] != ids_B[:-1]).long()
    place_B = begins_B.cumsum(0) - 1
    sums_BE = torch.zeros_like(gradient_BE).index_add_(0, place_B, gradient_BE[order_B])
    table[ids_B] = table[ids_B] * (1 - lr * decay) - lr * sums_BE[place_B].sign()


class Average:
    """Exponential moving average of a model's parameters; its puzzle table moves by a rule of its own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """`step` from 1; early steps average over less, so that the random start is forgotten quickly."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.state.values()), [p.detach() for p in model.parameters()], weight)
