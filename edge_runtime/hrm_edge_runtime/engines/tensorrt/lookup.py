"""From a bundle to a TensorRT engine on this machine: what is built, which precision is fastest, and opening it."""

from __future__ import annotations

import shlex

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.tensorrt import api, cache
from hrm_edge_runtime.engines.tensorrt.cache import Built, EngineKey, Machine
from hrm_edge_runtime.engines.tensorrt.cuda import Gpu, PycudaGpu
from hrm_edge_runtime.engines.tensorrt.engine import TensorRTEngine
from hrm_host.board import power_mode


def this_machine(gpu: Gpu | None = None) -> Machine:
    """What engines are bound to here; opens the GPU for a moment where none is given."""
    version = api.version()
    info = PycudaGpu.look() if gpu is None else gpu.info
    return Machine(
        gpu=info.name,
        compute_capability=info.compute_capability,
        tensorrt=version,
        power_mode=power_mode(),
    )


def open_engine(
    bundle: Bundle, *, precision: str, num_slots: int, want_logits: bool = False, gpu: Gpu | None = None
) -> TensorRTEngine:
    """Open the built engine; raises EngineUnavailableError with the command that builds it where there is none."""
    api.version()
    gpu = gpu or PycudaGpu()
    try:
        key = EngineKey.of(bundle, this_machine(gpu), precision=precision, num_slots=num_slots)
        built, plan = cache.read_plan(bundle, key)
        return TensorRTEngine(
            plan,
            bundle.manifest,
            num_slots=num_slots,
            buckets=built.key.buckets,
            gpu=gpu,
            want_logits=want_logits,
        )
    except BaseException:
        gpu.close()
        raise


def built_engines(bundle: Bundle, machine: Machine, *, num_slots: int) -> list[Built]:
    """The pages of this bundle's engines that fit this machine and hold so many slots."""
    folder = cache.engine_dir(bundle)
    keys = (
        EngineKey.of(bundle, machine, precision=precision, num_slots=num_slots)
        for precision in bundle.manifest.precisions
    )
    return [built for key in keys if (built := cache.covering(folder, key)) is not None]


def fastest(bundle: Bundle, *, num_slots: int) -> str:
    """The precision whose engine was measured fastest; raises EngineUnavailableError where none was built."""
    built = [one for one in built_engines(bundle, this_machine(), num_slots=num_slots) if one.step_ms]
    if not built:
        command = shlex.join(cache.build_command(bundle, num_slots=num_slots))
        raise EngineUnavailableError(
            f"no TensorRT engine for {num_slots} slots was built here yet: build it with `{command}`."
        )
    return fastest_of(built, num_slots)


def fastest_of(built: list[Built], num_slots: int) -> str:
    """The precision of the least time with every slot in use."""
    measured = _measured(built, num_slots)
    return min(measured, key=lambda precision: measured[precision])


def verdict(built: list[Built], num_slots: int) -> str:
    """Which precision is chosen and by how much, in one line; an INT8 engine slower than FP16 is named as such."""
    measured = _measured(built, num_slots)
    told = ", ".join(f"{precision} {ms:.2f} ms" for precision, ms in sorted(measured.items(), key=lambda item: item[1]))
    slower = "int8" in measured and "fp16" in measured and measured["int8"] >= measured["fp16"]
    remark = "; INT8 is no faster than FP16 on this device" if slower else ""
    return f"a segment of {num_slots} slots takes {told}{remark}: {fastest_of(built, num_slots)} is chosen."


def _measured(built: list[Built], num_slots: int) -> dict[str, float]:
    return {one.key.precision: _ms(one.step_ms, num_slots) for one in built if one.step_ms}


def _ms(step_ms: dict[int, float], num_slots: int) -> float:
    return step_ms[min(bucket for bucket in step_ms if bucket >= num_slots)]
