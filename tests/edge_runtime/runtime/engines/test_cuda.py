"""The CUDA driver on a card through `Gpu` and cuda-bindings, without TensorRT."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from hrm_edge_runtime.engines.engine import EngineLostError, EngineUnavailableError
from hrm_edge_runtime.engines.trt.cuda import Gpu
from hrm_edge_runtime.engines.trt.drivers import is_installed

NUM_NUMBERS = 1024
SHAPE = (NUM_NUMBERS,)
NUM_BYTES = 4 * NUM_NUMBERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_installed("cuda.bindings"), reason="cuda-bindings is not installed"),
]


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with closing(Gpu()) as opened:
        yield opened


def test_recorded_copies_carry_what_the_host_wrote_since(gpu: Gpu):
    tensors = {"numbers": (SHAPE, np.float32), "flags": (SHAPE, np.bool_)}
    told = gpu.share(tensors)
    heard = gpu.share(tensors)
    between = gpu.allocate(told.memory.nbytes)
    event = gpu.event()

    def work() -> None:
        gpu.upload(told)
        gpu.copy(told.address, between, told.memory.nbytes)
        gpu.copy(between, heard.address, told.memory.nbytes)
        gpu.download(heard)

    launch = gpu.capture(work)
    for turn in range(3):
        told.arrays["numbers"][:] = np.arange(NUM_NUMBERS) + turn
        told.arrays["flags"][:] = np.arange(NUM_NUMBERS) % 3 == turn
        launch()
        gpu.record(event)
        gpu.wait_for(event)
        for name, array in told.arrays.items():
            np.testing.assert_array_equal(heard.arrays[name], array)
            offset = told.addresses[name] - told.address
            copied = gpu.read(between + offset, SHAPE, array.dtype)
            np.testing.assert_array_equal(copied, array)


def test_new_memory_is_zero_also_where_other_numbers_stood():
    for _ in range(2):
        with closing(Gpu()) as other:
            shared = other.share({"numbers": (SHAPE, np.float32)})
            address = other.allocate(NUM_BYTES)
            assert not shared.arrays["numbers"].any()
            assert not other.read(address, SHAPE, np.float32).any()
            shared.arrays["numbers"][:] = 1
            other.upload(shared)
            other.copy(shared.address, address, NUM_BYTES)
            assert other.read(address, SHAPE, np.float32).all()


def test_what_cannot_be_recorded_is_told_and_the_stream_works_on(gpu: Gpu):
    error = "cuStreamSynchronize gives CUDA_ERROR_STREAM_CAPTURE"
    with pytest.raises(EngineLostError, match=error):
        gpu.capture(gpu.wait)
    shared = gpu.share({"numbers": (SHAPE, np.float32)})
    shared.arrays["numbers"][:] = np.arange(NUM_NUMBERS)
    gpu.capture(lambda: gpu.upload(shared))()
    read = gpu.read(shared.address, SHAPE, np.float32)
    np.testing.assert_array_equal(read, shared.arrays["numbers"])


def test_more_memory_than_the_card_has_is_one_sentence(gpu: Gpu):
    error = r"cannot allocate .* MB \(cuMemAlloc gives CUDA_ERROR_OUT_OF_MEMORY\)"
    with pytest.raises(EngineUnavailableError, match=error):
        gpu.allocate(2 * gpu.info.memory_bytes)
