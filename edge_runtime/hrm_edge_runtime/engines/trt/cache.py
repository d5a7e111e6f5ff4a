"""Built engines on disk: which one fits this machine, which is fastest, and opening it.

A plan cannot be asked before it is opened, so beside each `NAME.plan` lies a `NAME.json` that says what it was built
from and on. The power mode counts, because kernels are picked by timing them under it; so do the module, its
multiprocessors and its memory, since an Orin Nano, NX and AGX all call themselves Orin.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_edge_runtime.contract.bundle import Bundle, user_cache
from hrm_edge_runtime.contract.manifest import sha256_of
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api
from hrm_edge_runtime.engines.trt.cuda import Gpu, look
from hrm_edge_runtime.engines.trt.engine import TensorRTEngine
from hrm_host import atomic
from hrm_host.board import Host
from hrm_host.memory import GIB

BUILD_MODULE = "hrm_edge_runtime.engines.trt.build"
INT8_GAIN = 1.1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan is bound to besides its graph."""

    gpu: str
    module: str
    compute_capability: str
    num_sms: int
    memory_gib: int
    tensorrt: str
    power_mode: str

    @property
    def machine_name(self) -> str:
        """A file name for what holds for every graph here, as the times of kernels do."""
        own = {field.name: getattr(self, field.name) for field in fields(Machine)}
        return f"{_plain(self.gpu)}-{_plain(self.power_mode)}-{_digest(own)}"


@dataclass(frozen=True, kw_only=True)
class EngineKey(Machine):
    onnx_sha256: str
    precision: str
    buckets: tuple[int, ...]

    @classmethod
    def of(cls, bundle: Bundle, machine: Machine, *, precision: str, num_slots: int) -> EngineKey:
        file = bundle.graph_path(precision)
        return cls(
            **asdict(machine),
            onnx_sha256=bundle.manifest.files[file.name].sha256,
            precision=precision,
            buckets=buckets_for(num_slots),
        )

    @property
    def name(self) -> str:
        return f"{_plain(self.gpu)}-trt{self.tensorrt}-{self.precision}-b{self.buckets[-1]}-{_digest(asdict(self))}"


class Built(BaseModel):
    """The page beside a plan: each bucket's time for a segment, once measured, and the gates that it `breaks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: EngineKey
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    plan_bytes: int
    graph_bytes: int
    build_seconds: float
    workspace_mb: int
    optimization_level: int
    fused_attention: int | None = None
    step_ms: dict[int, float] | None = None
    breaks: tuple[str, ...] = ()


def this_machine(gpu: Gpu | None = None) -> Machine:
    """What engines are bound to here; opens the GPU for a moment where none is given."""
    version = api.version()
    info = look() if gpu is None else gpu.info
    return Machine(
        gpu=info.name,
        module=Host().model or "none",
        compute_capability=info.compute_capability,
        num_sms=info.num_sms,
        memory_gib=round(info.memory_bytes / GIB),
        tensorrt=version,
        power_mode=Host().power_mode(),
    )


def open_engine(
    bundle: Bundle, *, precision: str, num_slots: int, want_logits: bool = False, gpu: Gpu | None = None
) -> TensorRTEngine:
    """Open the built engine; raises EngineUnavailableError with the command that builds it where there is none."""
    api.version()
    gpu = gpu or Gpu()
    try:
        key = EngineKey.of(bundle, this_machine(gpu), precision=precision, num_slots=num_slots)
        built, plan = read_plan(bundle, key)
        return TensorRTEngine(
            plan, bundle.manifest, num_slots=num_slots, buckets=built.key.buckets, gpu=gpu, want_logits=want_logits
        )
    except BaseException:
        gpu.close()
        raise


def plan_folder() -> Path:
    return user_cache() / "plans"


def fastest(bundle: Bundle, *, num_slots: int) -> str:
    """The precision whose engine was measured fastest; raises EngineUnavailableError where none was built."""
    machine, built = this_machine(), list[Built]()
    for precision in bundle.manifest.precisions:
        page = covering(EngineKey.of(bundle, machine, precision=precision, num_slots=num_slots))
        if page is not None and page.step_ms:
            built.append(page)
    if (chosen := fastest_of(built, num_slots)) is None:
        remedy = f"build it with `{shlex.join(build_command(bundle, num_slots=num_slots))}`"
        raise EngineUnavailableError(f"no TensorRT engine for {num_slots} slots was built here yet: {remedy}.")
    return chosen


def fastest_of(built: list[Built], num_slots: int) -> str | None:
    """The quickest precision that holds PyTorch's answers; INT8, which costs solves, must win by `INT8_GAIN`."""
    measured = _ms_by_precision([page for page in built if not page.breaks], num_slots)
    cost = {name: ms * INT8_GAIN if name == "int8" else ms for name, ms in measured.items()}
    return min(cost, key=lambda precision: cost[precision], default=None)


def verdict(built: list[Built], num_slots: int) -> str:
    """Which precision is chosen and by how much, in one line; says so where INT8 gains too little or a gate breaks."""
    measured = _ms_by_precision(built, num_slots)
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in sorted(measured.items(), key=lambda item: item[1]))
    slow = "int8" in measured and "fp16" in measured and measured["int8"] * INT8_GAIN >= measured["fp16"]
    remark = f"; INT8 is not {INT8_GAIN} times as fast as FP16 on this device" if slow else ""
    broken = "".join(f"; {page.key.precision} breaks parity: {page.breaks[0]}" for page in built if page.breaks)
    chosen = fastest_of(built, num_slots) or "none"
    return f"a segment of {num_slots} slots takes {times}{remark}{broken}: {chosen} is chosen."


def _ms_by_precision(built: list[Built], num_slots: int) -> dict[str, float]:
    return {
        page.key.precision: page.step_ms[min(bucket for bucket in page.step_ms if bucket >= num_slots)]
        for page in built
        if page.step_ms
    }


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _digest(key: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:10]


def buckets_for(num_slots: int) -> tuple[int, ...]:
    """Batch sizes with a profile of their own: the powers of two below `num_slots`, and itself."""
    powers = (1 << power for power in range(num_slots.bit_length()))
    return tuple(sorted({*(size for size in powers if size < num_slots), num_slots}))


def build_command(bundle: Bundle, *, precision: str | None = None, num_slots: int) -> list[str]:
    """The arguments of the command that builds the engine; without a precision, of all that are worth a try."""
    chosen = [] if precision is None else ["--precision", precision]
    return [sys.executable, "-m", BUILD_MODULE, str(bundle.path), *chosen, "--slots", str(num_slots)]


def write(built: Built, plan: bytes | None = None) -> None:
    """Write a plan and then its page, or the page alone: a plan without a page counts for nothing."""
    if plan is not None:
        atomic.write_bytes(plan_folder() / f"{built.key.name}.plan", plan)
    atomic.write_text(plan_folder() / f"{built.key.name}.json", built.model_dump_json(indent=2) + "\n")


def find(key: EngineKey) -> Built | None:
    """The page of the engine with this key; None where it was not built, or not to its end."""
    built = _read(plan_folder() / f"{key.name}.json")
    whole = built is not None and built.key == key and (plan_folder() / f"{key.name}.plan").is_file()
    return built if whole else None


def covering(key: EngineKey) -> Built | None:
    """The engine with this key, or the smallest that differs only in having more slots."""
    alike = [page for page in _pages() if replace(page.key, buckets=key.buckets) == key]
    enough = [page for page in alike if page.key.buckets[-1] >= key.buckets[-1]]
    return find(key) or min(enough, key=lambda page: page.key.buckets[-1], default=None)


def read_plan(bundle: Bundle, key: EngineKey) -> tuple[Built, bytes]:
    """The engine that covers this key; raises EngineUnavailableError with the command that builds one."""
    built = covering(key)
    command = shlex.join(build_command(bundle, precision=key.precision, num_slots=key.buckets[-1]))
    if built is None:
        related = [page.key for page in _pages() if page.key.onnx_sha256 == key.onnx_sha256]
        why = f"there is no TensorRT engine of precision {key.precision} for {key.buckets[-1]} slots yet"
        if related:
            nearest = min(related, key=lambda other: len(_differences(other, key)))
            why = f"the TensorRT engine {nearest.name} was built for {', '.join(_differences(nearest, key))}"
        raise EngineUnavailableError(f"{why}: build it with `{command}`.")
    plan = plan_folder() / f"{built.key.name}.plan"
    if not plan.is_file() or sha256_of(plan) != built.plan_sha256:
        raise EngineUnavailableError(f"{plan} is not what was built: build it again with `{command} --again`.")
    return built, plan.read_bytes()


def _differences(theirs: EngineKey, ours: EngineKey) -> list[str]:
    due = asdict(ours)
    return [f"{name} {value} and not {due[name]}" for name, value in asdict(theirs).items() if value != due[name]]


def _pages() -> list[Built]:
    return [built for file in sorted(plan_folder().glob("*.json")) if (built := _read(file)) is not None]


def _read(file: Path) -> Built | None:
    try:
        return Built.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
