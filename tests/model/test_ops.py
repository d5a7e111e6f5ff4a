"""Derivatives written by hand equal autograd's; fake INT8 rounds as the exporter does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hrm_calibration.quantize import quantized_weight
from hrm_model import ops
from hrm_model.ops import ACTIVATION_LIMIT, fake_int8, fake_int8_weight

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


def test_a_weight_is_rounded_as_the_exporter_stores_it() -> None:
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    stored_IO, scale_O = quantized_weight(weight.T.numpy(), ops.WEIGHT_LIMIT)
    # The last bit of a scale is all that may differ.
    assert np.allclose(fake_int8_weight(weight).T.numpy(), stored_IO * scale_O, rtol=1e-6, atol=0)
    assert fake_int8(torch.zeros(8)).abs().sum() == 0
    assert fake_int8_weight(torch.zeros(2, 8)).abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_activation_takes_at_most_255_values_and_keeps_its_type(dtype: torch.dtype) -> None:
    x = torch.randn(4, 50, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    rounded = fake_int8(x)
    assert rounded.dtype == dtype
    assert len(rounded.unique()) <= 2 * ACTIVATION_LIMIT + 1
    within = x.abs() < rounded.abs().max()
    assert (rounded - x)[within].abs().max() <= x.abs().max() / ACTIVATION_LIMIT


def test_gradients_pass_the_rounding_and_stop_at_the_clip() -> None:
    """One value far beyond the others is clipped and does not coarsen them."""
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    x[7] = 1000.0
    x.requires_grad_()
    rounded = fake_int8(x)
    assert rounded[7] < 2
    assert (rounded - x)[8:].abs().max() < 1 / ACTIVATION_LIMIT
    rounded.sum().backward()
    assert x.grad is not None
    assert x.grad[7] == 0
    assert (x.grad == 1).sum() >= 19_990
