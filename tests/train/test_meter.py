"""Measured: phases of a step without waiting, figures of the GPU, a profile of real steps."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from train_tools import small_trainer

from hrm_train import meter
from hrm_train.meter import TABLE, TRACE, PhaseTimer, profile_steps, throttle_reasons

CPU = torch.device("cpu")


class Clock:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.now_s / 2


def test_samples_per_second_leave_out_what_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    timer = PhaseTimer(CPU)
    for _ in range(2):  # a phase entered twice adds up
        with timer.phase("forward"):
            clock.now_s += 0.25
    timer.count(16)
    with timer.aside():
        clock.now_s += 3.0
    clock.now_s += 0.5
    reading = timer.drain()
    assert (reading.samples_per_s, reading.step_ms, reading.cpu_cores) == (16.0, 1000.0, 0.5)
    assert (reading.share("forward"), reading.share("data")) == (0.5, 0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_phases_on_a_gpu_are_device_time() -> None:
    timer = PhaseTimer(torch.device("cuda"))
    matrix = torch.randn(4096, 4096, device="cuda")
    with timer.phase("forward"):
        for _ in range(20):
            matrix = matrix @ matrix / 64
    timer.count(1)
    torch.cuda.synchronize()
    assert timer.drain().phase_ms["forward"] > 1


def test_a_gpu_without_the_library_says_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    said: list[str] = []
    assert meter.open_gpu(torch.device("cuda"), said.append) is None
    assert [sentence.count("pip install nvidia-ml-py") for sentence in said] == [1]


def test_what_a_card_does_not_answer_is_left_out() -> None:
    class NoAnswer(Exception):  # noqa: N818
        """As nvidia-ml-py raises for what a laptop's card does not support."""

    def refuse(*_: object) -> float:
        raise NoAnswer

    library = SimpleNamespace(
        NVMLError=NoAnswer,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=93),
        nvmlDeviceGetTemperature=lambda *_: 71,
        nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetClockInfo=lambda _, clock: 1000 * clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x20,
    )
    card = meter.NvmlGpu(library, None)
    assert card.throttled() == ("thermal",)
    assert card.sample() == {
        "gpu_utilisation_percent": 93.0,
        "gpu_temperature_c": 71.0,
        "gpu_sm_clock_mhz": 1000.0,
        "gpu_memory_clock_mhz": 2000.0,
    }


def test_throttle_bits_are_named_and_idling_is_no_reason() -> None:
    assert throttle_reasons(0x01 | 0x02 | 0x10) == ()
    assert throttle_reasons(0x04) == ("power",)
    assert throttle_reasons(0x08 | 0x40) == ("thermal",)
    assert throttle_reasons(0x08) == ("hardware",)


def test_a_profile_names_phases_and_operators(data: Path, tmp_path: Path) -> None:
    trainer = small_trainer(data)
    run = tmp_path / "run"
    text = profile_steps(trainer.step, trainer.device, run, (1, 2))
    assert trainer.progress.step == 1 + meter.WARM + 2
    assert (run / TABLE).read_text() == text
    for name in ("phase/forward", "phase/backward", "phase/optimizer", "aten::mm"):
        assert name in text
    trace = json.loads(gzip.decompress((run / TRACE).read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("phase/backward") == 2
