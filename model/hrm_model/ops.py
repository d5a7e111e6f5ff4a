"""The elementwise steps of a block with explicit derivatives.

Fused steps are for a CPU: they take fewer passes over memory than autograd. Under torch.compile
the plain formulas replace them, because its own fusion is faster. Both give the same numbers, up
to float rounding.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def residual_norm(x: Tensor, change: Tensor, eps: float) -> Tensor:
    """(x + change) / rms(x + change) over the last axis, in float32. As published, without gain."""
    if torch.compiler.is_compiling():
        wide = (x + change).float()
        mean_square = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + eps)).to(x.dtype)
    return _ResidualNorm.apply(x, change, eps)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up; gate and up are the two halves of the last axis."""
    if torch.compiler.is_compiling():
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    return _Gated.apply(gate_up)


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, change: Tensor, eps: float
    ) -> Tensor:
        wide = (x + change).float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y = wide.mul_(scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """scale (g - y mean(g y))."""
        y, scale = ctx.saved_tensors
        (g,) = gradients
        result = g.float() * y
        mean = result.sum(-1, keepdim=True).div_(-y.shape[-1])
        torch.mul(y, mean, out=result)
        result = result.add_(g).mul_(scale).to(g.dtype)
        return result, result, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:  # type: ignore[override]
        gate, up = gate_up.chunk(2, dim=-1)
        silu = F.silu(gate)
        if not ctx.needs_input_grad[0]:
            return silu.mul_(up)
        ctx.save_for_backward(gate_up, silu)
        return silu * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, silu = ctx.saved_tensors
        (g,) = gradients
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        for_gate, for_up = result.chunk(2, dim=-1)
        torch.mul(g, silu, out=for_up)
        torch.ops.aten.silu_backward.grad_input(g * up, gate, grad_input=for_gate)
        return result
