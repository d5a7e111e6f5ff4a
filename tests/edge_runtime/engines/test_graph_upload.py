"""A CUDA graph is sent to the device when it is recorded, not by its first launch."""

from collections.abc import Callable
from contextlib import closing

import pytest
from stand_ins import SetUp

from hrm_edge_runtime.engines.trt.cuda import CaptureError, Gpu
from hrm_edge_runtime.engines.trt.drivers import BindingsDriver, Driver, PycudaDriver


def pycuda() -> Driver:
    import pycuda.driver

    return PycudaDriver(library=pycuda.driver.Library())


@pytest.mark.parametrize("driver", [BindingsDriver, pycuda])
def test_a_recorded_graph_is_on_the_device_before_its_first_launch(
    device: SetUp, driver: Callable[[], Driver]
) -> None:
    del device
    with closing(Gpu(driver())) as gpu:
        launch = gpu.capture(lambda: None)
        import fake_gpu

        assert fake_gpu.uploaded == set(fake_gpu.executables)
        assert fake_gpu.launches == 0
        launch()
        assert fake_gpu.launches == 1


@pytest.mark.parametrize("driver", [BindingsDriver, pycuda])
def test_a_graph_that_cannot_be_sent_is_not_used_and_released(
    device: SetUp, driver: Callable[[], Driver]
) -> None:
    device(FAKE_CUDA_FAILS="cuGraphUpload")
    with closing(Gpu(driver())) as gpu, pytest.raises(CaptureError, match="cuGraphUpload"):
        gpu.capture(lambda: None)
    import fake_gpu

    assert fake_gpu.executables == {}
