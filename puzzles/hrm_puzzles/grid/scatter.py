"""Scattering the bits of numbers, so that sums of scattered numbers tell their terms apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]


def mixed(values: UInt64Array, salt: int = 0) -> UInt64Array:
    """The finaliser of MurmurHash3 over each value; other salts give independent numbers."""
    values = values + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ values >> np.uint64(33)) * np.uint64(factor)
    return values ^ values >> np.uint64(33)
