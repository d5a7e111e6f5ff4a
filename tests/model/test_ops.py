"""Derivatives written by hand equal autograd's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hrm_model import ops

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""Sums in another order; bfloat16 keeps 8 bits."""


def plain_norm(x: Tensor, change: Tensor) -> Tensor:
    wide = (x + change).float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def plain_gated(x: Tensor, change: Tensor) -> Tensor:
    gate, up = (x + change).chunk(2, dim=-1)
    return F.silu(gate) * up


def of(
    step: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The value, and the gradients of both inputs under random weights."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, 5, 16)
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    change = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(shape, generator=generator).to(dtype)
    y = step(x, change)
    weighted = y * weight[..., : y.shape[-1]]
    weighted.float().sum().backward()
    assert x.grad is not None
    assert change.grad is not None
    return y.detach(), x.grad, change.grad


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("step", "plain"),
    [
        (lambda x, change: ops.residual_norm(x, change, EPS), plain_norm),
        (lambda x, change: ops.gated(x + change), plain_gated),
    ],
    ids=["residual_norm", "gated"],
)
def test_value_and_gradients_are_those_of_the_plain_formula(
    step: Callable[[Tensor, Tensor], Tensor],
    plain: Callable[[Tensor, Tensor], Tensor],
    dtype: torch.dtype,
) -> None:
    for found, expected in zip(of(step, dtype), of(plain, dtype), strict=True):
        assert found.dtype == dtype
        assert torch.allclose(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_no_input_is_written_into() -> None:
    x = torch.randn(2, 3, 8)
    change = torch.randn(2, 3, 8)
    x_before = x.clone()
    change_before = change.clone()
    with torch.no_grad():
        ops.residual_norm(x, change, EPS)
        ops.gated(x)
    assert torch.equal(x, x_before)
    assert torch.equal(change, change_before)
