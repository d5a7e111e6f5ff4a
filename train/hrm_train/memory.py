"""What a training step needs of the device's memory."""

from __future__ import annotations

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """A device's own error, or the CPU allocator's, which has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
