"""The meter: phases add up per step, and marks that have not passed are never waited for."""

from __future__ import annotations

import time

import pytest
import torch

from hrm_train.meter import Meter

CPU = torch.device("cpu")


class DeviceMark:
    """A moment on a device whose clock the test moves: it has passed once `now_ms` has reached it."""

    now_ms = 0.0
    enqueued_ms = 0.0

    def record(self) -> None:
        DeviceMark.enqueued_ms += 10.0
        self.at_ms = DeviceMark.enqueued_ms

    def query(self) -> bool:
        return self.at_ms <= DeviceMark.now_ms

    def elapsed_time(self, end_event: DeviceMark, /) -> float:
        return end_event.at_ms - self.at_ms


def step(meter: Meter, *phases: str, samples: int = 8) -> None:
    for phase in phases:
        with meter.phase(phase):
            pass
    meter.count(samples)


def test_a_phase_entered_twice_in_a_step_adds_up() -> None:
    DeviceMark.now_ms, DeviceMark.enqueued_ms = 1e9, 0.0
    meter = Meter(CPU, DeviceMark)
    step(meter, "forward", "forward", "backward")
    step(meter, "forward", "forward", "backward")
    assert meter.drain().phase_ms == {"forward": 20.0, "backward": 10.0}


def test_steps_still_on_the_device_wait_for_the_next_reading() -> None:
    DeviceMark.now_ms, DeviceMark.enqueued_ms = 20.0, 0.0
    meter = Meter(CPU, DeviceMark)
    step(meter, "forward")
    step(meter, "optimiser")
    assert meter.drain().phase_ms == {"forward": 10.0}
    DeviceMark.now_ms = 40.0
    assert meter.drain().phase_ms == {"optimiser": 10.0}


def test_samples_per_second_leave_out_what_is_no_training() -> None:
    meter = Meter(CPU)
    with meter.phase("forward"):
        time.sleep(0.02)
    meter.count(16)
    with meter.aside():
        time.sleep(0.2)
    reading = meter.drain()
    assert reading.steps == 1
    assert 20 <= reading.phase_ms["forward"] <= reading.step_ms < 200
    assert reading.samples_per_s == pytest.approx(16 / (reading.step_ms / 1000))
    assert 0 < reading.share("forward") <= 1
    assert reading.share("data") == 0


def test_nothing_measured_reads_as_nothing() -> None:
    reading = Meter(CPU).drain()
    assert (reading.steps, reading.samples_per_s, dict(reading.phase_ms)) == (0, 0.0, {})


def test_steps_nobody_reads_are_forgotten() -> None:
    meter = Meter(CPU)
    for _ in range(Meter.MOST_PENDING + 10):
        step(meter, "forward")
    assert len(meter._pending) == Meter.MOST_PENDING


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_phases_on_a_gpu_are_device_time() -> None:
    meter = Meter(torch.device("cuda"))
    matrix = torch.randn(4096, 4096, device="cuda")
    with meter.phase("forward"):
        for _ in range(20):
            matrix = matrix @ matrix / 64
    meter.count(1)
    torch.cuda.synchronize()
    assert meter.drain().phase_ms["forward"] > 1
