"""The kernels of a TensorRT engine, from the builder's log at detailed verbosity."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

LAYER = re.compile(r"^Name: (.+?), LayerType: \w+, (.+)$", re.MULTILINE)
PROFILE = re.compile(r"_myl(\d+)_\d+$")
TENSOR = re.compile(r"Dimensions: \[([-\d,]*)\].*?Datatype: (\w+)")
STREAM = re.compile(r"StreamId: (\d+)")
ELEMENT_BYTES = {
    "Float": 4,
    "Half": 2,
    "Int8": 1,
    "UInt8": 1,
    "Bool": 1,
    "Int32": 4,
    "Int64": 8,
}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of one optimization profile; `moved_bytes` are its inputs, constants and outputs."""

    profile: int
    stream: int
    moved_bytes: int


def kernels_in(log: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for name, details in LAYER.findall(log):
        profile = PROFILE.search(name)
        assert profile is not None, name
        stream = STREAM.search(details)
        assert stream is not None, details
        kernel = Kernel(
            profile=int(profile[1]),
            stream=int(stream[1]),
            moved_bytes=_moved_bytes(details),
        )
        kernels.append(kernel)
    return kernels


def most_kernels(kernels: Sequence[Kernel]) -> int:
    """Kernels of the profile that has most."""
    counts = Counter(kernel.profile for kernel in kernels)
    return max(counts.values())


def _moved_bytes(details: str) -> int:
    total = 0
    for dimensions, kind in TENSOR.findall(details):
        sizes = [abs(int(size)) for size in dimensions.split(",") if size]
        total += prod(sizes) * ELEMENT_BYTES[kind]
    return total
