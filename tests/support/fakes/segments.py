"""Segments on ONNX Runtime at the addresses that TensorRT's stand-in is given.

`OnHost` uses the CPU provider and waits in a stream of `fake_gpu`. `OnCard` uses the CUDA provider
on a stream of the real driver, so a recorded stream records ONNX Runtime's kernels. Nothing may
allocate memory there while it is recorded, so memory patterns are off: the first run, which is
never recorded, then makes the arena as large as it gets. `OnCard` has not run yet.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import fake_gpu
import numpy as np
import onnxruntime as ort

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
NUMPY_OF: dict[str, Any] = {
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(bool)": np.bool_,
}


def open_session(onnx: bytes, provider: str, **settings: str) -> ort.InferenceSession:
    """A session on one core; raises AssertionError if the provider does not start."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    session = ort.InferenceSession(onnx, options, providers=[(provider, settings)])
    assert session.get_providers()[0] == provider
    return session


def bound(
    session: ort.InferenceSession, device: str, num_rows: int, addresses: dict[str, int]
) -> ort.IOBinding:
    """All tensors of `num_rows` rows at their addresses; an input without one is never read."""
    binding = session.io_binding()
    unused = addresses["tokens_BT"]
    for node in session.get_inputs():
        shape = [num_rows, *node.shape[1:]]
        address = addresses.get(node.name, unused)
        binding.bind_input(node.name, device, 0, NUMPY_OF[node.type], shape, address)
    for node in session.get_outputs():
        shape = [num_rows, *node.shape[1:]]
        binding.bind_output(node.name, device, 0, NUMPY_OF[node.type], shape, addresses[node.name])
    return binding


class OnHost:
    """Runs a segment on the CPU as soon as somebody waits for the stream."""

    def __init__(self, session: ort.InferenceSession, stream: int) -> None:
        self._session = session
        self._stream = fake_gpu.streams[stream]

    def enqueue(self, num_rows: int, addresses: dict[str, int]) -> bool:
        if (
            os.environ.get("FAKE_TENSORRT_FAILS") == "capture"
            and self._stream.recording is not None
        ):
            self._stream.is_broken = True
            return False
        self._stream.put(lambda: self._run(num_rows, addresses))
        return True

    def _run(self, num_rows: int, addresses: dict[str, int]) -> None:
        self._session.run_with_iobinding(bound(self._session, "cpu", num_rows, addresses))


class OnCard:
    """Puts the kernels of a segment on a real stream and does not wait for them."""

    def __init__(self, onnx: bytes, stream: int) -> None:
        # TensorFloat-32 keeps ten bits of each factor, which breaks float32 parity
        self._session = open_session(onnx, CUDA, user_compute_stream=str(stream), use_tf32="0")
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def enqueue(self, num_rows: int, addresses: dict[str, int]) -> bool:
        binding = bound(self._session, "cuda", num_rows, addresses)
        try:
            self._session.run_with_iobinding(binding, self._options)
        except Exception as error:  # ONNX Runtime's errors lack a common class of their own
            print("ONNX Runtime runs no segment:", error, file=sys.stderr)
            return False
        return True
