"""What the GPU says about itself, through NVIDIA's management library (the package nvidia-ml-py). Not run on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One moment; a figure the card does not tell is None. `throttled` holds keys of watch.THROTTLED."""

    utilisation_percent: float | None
    temperature_c: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    throttled: tuple[str, ...]

    def scalars(self) -> dict[str, float]:
        figures = {name: value for name, value in vars(self).items() if name != "throttled" and value is not None}
        return {f"gpu_{name}": float(value) for name, value in figures.items()} | {
            "gpu_throttled": float(bool(self.throttled))
        }


class Gpu:
    """One card; `library` is the module pynvml, opened."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def sample(self) -> GpuSample:
        nvml, handle = self._library, self._handle
        return GpuSample(
            utilisation_percent=self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            sm_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            throttled=self._throttled(),
        )

    def _throttled(self) -> tuple[str, ...]:
        nvml = self._library
        bits = int(self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)) or 0)
        return reasons(bits)

    def _ask(self, question: Callable[[], float]) -> float | None:
        try:
            return question()
        except self._library.NVMLError:  # laptops and virtual cards do not answer everything
            return None


REASON_BITS = {"power": 0x04, "hardware": 0x08, "thermal": 0x20 | 0x40, "brake": 0x80}
"""Bits of nvmlClocksThrottleReasons: SwPowerCap, HwSlowdown, Sw and Hw ThermalSlowdown, HwPowerBrakeSlowdown."""


def reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons that hold the clock down; idle and settings made by the user are none."""
    found = tuple(name for name, mask in REASON_BITS.items() if bits & mask)
    specific = {"thermal", "brake"} & set(found)
    return tuple(name for name in found if name != "hardware" or not specific)


def open_gpu(device: torch.device, say: Callable[[str], None]) -> Gpu | None:
    """The card that trains; None on a CPU, and with one sentence where the library or its driver is missing."""
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        say("GPU temperature, power and clocks are not shown; pip install nvidia-ml-py to see them")
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except (pynvml.NVMLError, AttributeError) as error:
        say(f"GPU temperature, power and clocks are not shown ({error}); check that 'nvidia-smi' works")
        return None


def memory(device: torch.device) -> dict[str, float]:
    """GPU memory as PyTorch sees it, in GiB; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "memory_allocated_gib": torch.cuda.memory_allocated(device) / GIB,
        "memory_reserved_gib": torch.cuda.memory_reserved(device) / GIB,
        "memory_peak_gib": torch.cuda.max_memory_allocated(device) / GIB,
    }
