"""The elementwise steps of a block with explicit derivatives, and products rounded as in INT8.

Fused steps are for a CPU: they take fewer passes over memory than autograd. Under torch.compile
the plain formulas replace them, because its own fusion is faster. Both give the same numbers, up
to float rounding.

Fake INT8 lets training see the rounding (quantization-aware training). Weights are rounded per
output channel and activations per tensor, symmetrically, as `hrm_calibration.quantize` does.
Gradients pass through rounding unchanged and stop at clipped values (Bengio et al. 2013; Jacob et
al. 2018). The scale of an activation is read from the tensor itself, so there is no state to
save.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

# The exporter stores matrices in seven bits, because some processors saturate on eight.
WEIGHT_LIMIT = 64
ACTIVATION_LIMIT = 127
CLIPPED_SHARE = 1e-4  # share of an activation's magnitudes; equals percentile-99.99
SAMPLED = 1 << 16  # values of a tensor that are read to find its clip, approximately
LEAST_SCALE = 1e-12  # keeps the scale of zeros positive


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


def fake_int8(x: Tensor) -> Tensor:
    """Round activations of any shape to 255 steps of one scale."""
    flat = x.detach().flatten()
    stride = max(1, flat.numel() // SAMPLED)
    sample = flat[::stride].float().abs()
    num_clipped = int(CLIPPED_SHARE * sample.numel())
    clip = sample.topk(1 + num_clipped, sorted=True).values[-1]
    scale = (clip / ACTIVATION_LIMIT).clamp(min=LEAST_SCALE)
    zero = torch.zeros((), dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_tensor_affine(
        x, scale, zero, -ACTIVATION_LIMIT, ACTIVATION_LIMIT
    )


def fake_int8_weight(weight: Tensor) -> Tensor:
    """Round a matrix [out, in] to 129 steps of a scale for each output."""
    largest = weight.detach().float().abs().amax(dim=1)
    scale = (largest / WEIGHT_LIMIT).clamp(min=LEAST_SCALE)
    zero = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(
        weight, scale, zero, 0, -WEIGHT_LIMIT, WEIGHT_LIMIT
    )
