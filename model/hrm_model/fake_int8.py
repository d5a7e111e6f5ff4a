"""What INT8 will do to a matrix product, done in float so that training sees it (quantisation-aware training).

Weights are rounded per output channel and activations per tensor, symmetrically, as `hrm_calibration.quantise` does it
for good. Gradients pass the rounding as if it were not there and stop where a value was clipped (Bengio et al. 2013;
Jacob et al. 2018). The scale of an activation is read from the tensor at hand, so there is no state to save or resume.
"""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_LIMIT = 64
"""As the exporter stores matrices by default: seven bits, for processors whose kernel would saturate on eight."""
ACTIVATION_LIMIT = 127
CLIPPED_SHARE = 1e-4
"""Of an activation's magnitudes lie beyond the clip, as with the calibration method percentile-99.99."""
SAMPLED = 1 << 16
"""About so many values of a tensor are looked at to find its clip."""


def fake_int8(x: Tensor) -> Tensor:
    """Activations of any shape, rounded to 255 steps of one scale."""
    scale = (_clip(x.detach()) / ACTIVATION_LIMIT).clamp(min=1e-12)
    zero = torch.zeros((), dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, -ACTIVATION_LIMIT, ACTIVATION_LIMIT)


def fake_int8_weight(weight: Tensor) -> Tensor:
    """A matrix [out, in], rounded to 129 steps of a scale for each output."""
    scale = (weight.detach().float().abs().amax(dim=1) / WEIGHT_LIMIT).clamp(min=1e-12)
    zero = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -WEIGHT_LIMIT, WEIGHT_LIMIT)


def _clip(x: Tensor) -> Tensor:
    flat = x.flatten()
    sample = flat[:: max(1, flat.numel() // SAMPLED)].float().abs()
    return sample.topk(1 + int(CLIPPED_SHARE * sample.numel()), sorted=True).values[-1]
