"""A device made of stand-ins, and a bundle of its own for each test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import BUILD_COMMAND, FAKES, PYTHON_PATH, SetUp

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.trt import building
from hrm_parity import trt_build as tensorrt_build

FAKE_MODULES = (
    "stand_in_tensorrt",
    "tensorrt",
    "fake_gpu",
    "pycuda",
    "pycuda.driver",
    "cuda",
    "cuda.bindings",
    "cuda.bindings.driver",
)


def forget_stand_ins() -> None:
    for name in FAKE_MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[SetUp]:
    """Sets up the stand-ins: `device(FAKE_CUDA_INTEGRATED="0")`.

    A log line may not hold an exception, whose traceback would keep an engine alive.
    """
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("PYTHONPATH", PYTHON_PATH)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tensorrt_build, "MEASURE_S", 0.0)
    monkeypatch.setattr(tensorrt_build, "BUILD_COMMAND", BUILD_COMMAND)
    # a process per build; builds in processes of their own still ask it
    monkeypatch.setattr(factory, "check_start", lambda: None)
    monkeypatch.setattr(building, "is_small", lambda _: False)  # tiny models stand for large

    def set_up(**settings: str) -> None:
        forget_stand_ins()
        for name, value in settings.items():
            monkeypatch.setenv(name, value)

    set_up()
    yield set_up
    forget_stand_ins()
    for record in caplog.get_records("call"):
        for argument in record.args or ():
            assert not isinstance(argument, BaseException), record.getMessage()


@pytest.fixture
def bundle(copied: Path) -> Bundle:
    return Bundle.open(copied)
