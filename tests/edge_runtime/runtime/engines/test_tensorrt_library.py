"""What TensorRT's C++ library does to its Python bindings, and what the program makes of it.

`make check-trt` runs this through the bindings of six versions, where the crashes are NVIDIA's.
"""

import gc
from contextlib import closing

import numpy as np
import pytest
from cli_tools import succeeded
from stand_ins import BUILD_COMMAND, NVIDIA, STAND_IN_ONLY, SetUp

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api, cache
from hrm_parity import trt_build as tensorrt_build


@pytest.mark.process
@pytest.mark.parametrize("version", ["10.12.0", pytest.param("10.13.0", marks=STAND_IN_ONLY)])
def test_a_rejected_profile_crashes_before_10_13_and_raises_since(
    bundle: Bundle, device: SetUp, version: str
):
    device(FAKE_TENSORRT_FAILS="profile", FAKE_TENSORRT_VERSION=version)
    release = tuple(map(int, api.version().split(".")[:2]))
    problem = "rejects profile 0" if release >= (10, 13) else "killed by signal 11"
    with pytest.raises(EngineUnavailableError, match=problem):
        factory.prepare(bundle, "tensorrt:fp32", num_slots=1, build_command=BUILD_COMMAND)


@pytest.mark.skipif(not NVIDIA, reason="`make check-trt` downloads NVIDIA's bindings")
def test_every_object_of_the_library_ends_with_the_engine(bundle: Bundle, device: SetUp):
    del device
    import nvidia_bindings

    gc.collect()
    before = set(nvidia_bindings.live)
    succeeded(tensorrt_build.app, str(bundle.path), "--slots=1")
    with closing(cache.open_engine(bundle, precision="fp32", num_slots=1)) as engine:
        engine.load(0, np.zeros(16, np.int32), bundle.puzzle_table[0])
        engine.step(1)
        assert set(nvidia_bindings.live) > before
    gc.collect()
    assert set(nvidia_bindings.live) == before
