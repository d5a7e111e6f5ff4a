"""The published optimizers, in plain PyTorch: AdamATan2 for the network, sign descent for the
puzzle table.

The torch._foreach calls, one for all parameters, are what PyTorch's own optimizers are made of.
Sources: AdamATan2 (Everett et al., 2024; adam-atan2 0.0.3), the sparse embedding optimizer of
the published HRM, AdamW (Loshchilov and Hutter, 2019), and Lion (Chen et al., 2023).
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    """The parameters, their moments by name, and how an update is called."""

    moment_names = ("exp_avg",)

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        self.lr = lr
        self.betas = betas
        self.weight_decay = weight_decay
        self.num_steps = 0
        self.params: list[Tensor] = list(params)
        self.moments: dict[str, list[Tensor]] = {}  # by their names in a checkpoint
        for name in self.moment_names:
            self.moments[name] = [torch.zeros_like(p, requires_grad=False) for p in self.params]

    @torch.no_grad()
    def step(self, rate: float = 1.0) -> None:
        """Updates every parameter with `rate` times the learning rate, and frees the gradients.

        A gradient that is not finite spoils the weights: the run must end before it saves them.
        """
        self.num_steps += 1
        gradients: list[Tensor] = []
        for parameter in self.params:
            if parameter.grad is None:
                gradients.append(torch.zeros_like(parameter))
            else:
                gradients.append(parameter.grad)
        self._move(gradients, self.lr * rate)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        for parameter in self.params:
            parameter.grad = None

    def _move(self, gradients: list[Tensor], lr: float) -> None:
        raise NotImplementedError


class AdamATan2(Optimizer):
    """Adam whose quotient m / sqrt(v) passes through atan2: steps are bounded without an epsilon.

    w *= 1 - lr * wd;  w -= lr / (1 - b1^t) * atan2(m, sqrt(v) / sqrt(1 - b2^t)).
    """

    moment_names = ("exp_avg", "exp_avg_sq")

    def _move(self, gradients: list[Tensor], lr: float) -> None:
        beta1, beta2 = self.betas
        means = self.moments["exp_avg"]
        squares = self.moments["exp_avg_sq"]
        torch._foreach_mul_(self.params, 1 - lr * self.weight_decay)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        rate = -lr / (1 - beta1**self.num_steps)
        scale = torch.full((), rate, device=self.params[0].device)
        root = math.sqrt(1 - beta2**self.num_steps)
        for parameter, m, v in zip(self.params, means, squares, strict=True):
            direction = torch.atan2(m, v.sqrt().div_(root))
            parameter.addcmul_(direction, scale)


class AdamW(AdamATan2):
    """PyTorch's fused kernel."""

    def _move(self, gradients: list[Tensor], lr: float) -> None:
        num_steps = torch.full((), float(self.num_steps), device=self.params[0].device)
        steps = [num_steps] * len(self.params)
        torch._fused_adamw_(
            self.params,
            gradients,
            self.moments["exp_avg"],
            self.moments["exp_avg_sq"],
            [],
            steps,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def require_lion() -> Any:
    """Returns the module lion_pytorch; raises ValueError if it is missing."""
    try:
        import lion_pytorch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            "optimizer=lion needs the package lion-pytorch; pip install 'hrm-edge[lion]'"
        ) from error
    return lion_pytorch


class Lion(Optimizer):
    """The optimizer of the package lion-pytorch: the sign of a momentum, one moment."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # The package rejects a rate of 0, so the rate comes with each update.
        self._lion = require_lion().Lion(
            self.params, lr=1.0, betas=self.betas, weight_decay=self.weight_decay
        )
        for parameter, moment in zip(self.params, self.moments["exp_avg"], strict=True):
            self._lion.state[parameter]["exp_avg"] = moment

    def _move(self, gradients: list[Tensor], lr: float) -> None:
        for parameter, gradient in zip(self.params, gradients, strict=True):
            parameter.grad = gradient
        self._lion.param_groups[0]["lr"] = lr
        self._lion.step()


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam_atan2": AdamATan2,
    "adamw": AdamW,
    "lion": Lion,
}


@torch.no_grad()
def step_puzzle_table(
    table: Tensor, puzzle_ids_B: Tensor, gradient_BE: Tensor, lr: float, decay: float
) -> None:
    """Sign descent on the rows that the batch touched, in place.

    w = w (1 - lr decay) - lr sign(sum of the row's gradients). Equal ids write equal values, so the
    device need not report how many distinct ones there are.
    """
    ids_B, order_B = torch.sort(puzzle_ids_B.long(), stable=True)
    begins_B = torch.ones_like(ids_B)
    begins_B[1:] = (ids_B[1:] != ids_B[:-1]).long()
    place_B = begins_B.cumsum(0) - 1
    sums_BE = torch.zeros_like(gradient_BE)
    sums_BE.index_add_(0, place_B, gradient_BE[order_B])
    direction_BE = sums_BE[place_B].sign()
    table[ids_B] = table[ids_B] * (1 - lr * decay) - lr * direction_BE


class Average:
    """Exponential moving average of a model's parameters, without its puzzle table."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Moves the average toward the model. `step` counts from 1.

        Early steps average over fewer steps, which removes the random start quickly.
        """
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        averages = list(self.state.values())
        current = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(averages, current, weight)
