"""Sets of small numbers as the bits of one long integer."""

from __future__ import annotations

from collections.abc import Iterator


def bits_of(number: int) -> Iterator[int]:
    """The positions of the one-bits, rising."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
