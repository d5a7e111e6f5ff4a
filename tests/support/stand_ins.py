"""The stand-ins for TensorRT and CUDA in `fakes`, as modules of the running process."""

import sys
from collections.abc import Callable
from pathlib import Path

SUPPORT = Path(__file__).parent
FAKES = SUPPORT / "fakes"
FAKE_MODULES = (
    "tensorrt",
    "fake_gpu",
    "pycuda",
    "pycuda.driver",
    "cuda",
    "cuda.bindings",
    "cuda.bindings.driver",
)

SetUp = Callable[..., None]


def forget_stand_ins() -> None:
    for name in FAKE_MODULES:
        sys.modules.pop(name, None)
