"""Segments on ONNX Runtime at the addresses that TensorRT's stand-in is given."""

from __future__ import annotations

import os
from typing import Any

import fake_gpu
import numpy as np
import onnxruntime as ort

NUMPY_OF: dict[str, Any] = {
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(bool)": np.bool_,
}


def open_session(onnx: bytes) -> ort.InferenceSession:
    """A session on one core."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])


def bound(session: ort.InferenceSession, num_rows: int, addresses: dict[str, int]) -> ort.IOBinding:
    """All tensors of `num_rows` rows at their addresses; an input without one is never read."""
    binding = session.io_binding()
    unused = addresses["tokens_BT"]
    for node in session.get_inputs():
        shape = [num_rows, *node.shape[1:]]
        address = addresses.get(node.name, unused)
        binding.bind_input(node.name, "cpu", 0, NUMPY_OF[node.type], shape, address)
    for node in session.get_outputs():
        shape = [num_rows, *node.shape[1:]]
        binding.bind_output(node.name, "cpu", 0, NUMPY_OF[node.type], shape, addresses[node.name])
    return binding


class Segments:
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
        self._session.run_with_iobinding(bound(self._session, num_rows, addresses))
