"""Built engines on disk: which one fits this machine, which is fastest, and opening it.

A plan cannot be inspected before it is opened. So each `NAME.plan` has a `NAME.json` beside it, a
page that records the graph and the machine it was built from. The power mode counts because the
builder picks kernels by timing them. The module, its multiprocessors and its memory count because
an Orin Nano, NX and AGX all call themselves Orin.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api
from hrm_edge_runtime.engines.trt.cuda import Gpu, look
from hrm_edge_runtime.engines.trt.engine import (
    Profile,
    TensorRTEngine,
    buckets_for,
    profiles_for,
    slots_to_build,
)
from hrm_host import atomic
from hrm_host.atomic import sha256_of
from hrm_host.machine import Host, cache_folder
from hrm_host.memory import GIB
from hrm_host.reading import counted

INT8_GAIN = 1.1  # INT8 costs solves, so it must be this much faster than the others


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine to which a plan is bound, besides its graph."""

    gpu: str
    module: str
    compute_capability: str
    num_sms: int
    memory_gib: int
    tensorrt: str
    power_mode: str

    @property
    def machine_name(self) -> str:
        """A file name for what every graph on this machine shares: the times of kernels."""
        values = {field.name: getattr(self, field.name) for field in fields(Machine)}
        return f"{_plain(self.gpu)}-{_plain(self.power_mode)}-{_digest(values)}"


@dataclass(frozen=True, kw_only=True)
class EngineKey(Machine):
    """The key of a built engine."""

    onnx_sha256: str
    precision: str
    buckets: tuple[int, ...]
    profiles: tuple[Profile, ...]

    @classmethod
    def of(cls, bundle: Bundle, machine: Machine, *, precision: str, num_slots: int) -> EngineKey:
        file = bundle.graph_path(precision)
        buckets = buckets_for(slots_to_build(bundle, num_slots))
        return cls(
            **asdict(machine),
            onnx_sha256=bundle.manifest.files[file.name].sha256,
            precision=precision,
            buckets=buckets,
            profiles=profiles_for(bundle, buckets),
        )

    @property
    def name(self) -> str:
        largest = self.buckets[-1]
        digest = _digest(asdict(self))
        return f"{_plain(self.gpu)}-trt{self.tensorrt}-{self.precision}-b{largest}-{digest}"


class Built(BaseModel):
    """The page beside a plan: each bucket's time, once measured, and the gates that it `breaks`."""

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
    """What binds an engine to this machine; opens the GPU briefly unless one is passed."""
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
    bundle: Bundle,
    *,
    precision: str,
    num_slots: int,
    want_logits: bool = False,
    gpu: Gpu | None = None,
) -> TensorRTEngine:
    """Open the built engine; raises EngineUnavailableError with the command that builds it."""
    api.version()
    gpu = gpu or Gpu()
    try:
        key = EngineKey.of(bundle, this_machine(gpu), precision=precision, num_slots=num_slots)
        built, plan = read_plan(bundle, key)
        return TensorRTEngine(
            plan,
            bundle.manifest,
            num_slots=num_slots,
            buckets=built.key.buckets,
            num_profiles=len(built.key.profiles),
            gpu=gpu,
            want_logits=want_logits,
        )
    except BaseException:
        gpu.close()
        raise


def plan_folder() -> Path:
    """The folder of the plans. A bundle never holds plans: it may come from a stranger."""
    return cache_folder() / "plans"


def fastest(bundle: Bundle, *, num_slots: int) -> str:
    """The decided precision whose engine is fastest.

    Raises EngineUnavailableError if none is built.
    """
    machine = this_machine()
    built: list[Built] = []
    for precision in bundle.manifest.decided:
        key = EngineKey.of(bundle, machine, precision=precision, num_slots=num_slots)
        page = covering(key)
        if page is not None and page.step_ms:
            built.append(page)
    chosen = fastest_of(built, num_slots)
    if chosen is None:
        raise EngineUnavailableError(
            f"no TensorRT engine for {counted(num_slots, 'slot')} was built here yet: "
            f"`{serve_command(bundle, 'tensorrt', num_slots)}` builds it."
        )
    return chosen


def fastest_of(built: list[Built], num_slots: int) -> str | None:
    """The fastest precision that breaks no parity gate; INT8 must win by `INT8_GAIN`."""
    sound = [page for page in built if not page.breaks]
    cost_ms = _ms_by_precision(sound, num_slots)
    if "int8" in cost_ms:
        cost_ms["int8"] *= INT8_GAIN
    return min(cost_ms, key=cost_ms.__getitem__, default=None)


def verdict(built: list[Built], num_slots: int) -> str:
    """Which precision is chosen and why, in one line."""
    step_ms = _ms_by_precision(built, num_slots)
    fastest_first = sorted(step_ms.items(), key=lambda item: item[1])
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in fastest_first)
    text = f"a segment of {counted(num_slots, 'slot')} takes {times}"
    if "int8" in step_ms and "fp16" in step_ms and step_ms["int8"] * INT8_GAIN >= step_ms["fp16"]:
        text += f"; INT8 is not {INT8_GAIN} times as fast as FP16 on this device"
    for page in built:
        if page.breaks:
            text += f"; {page.key.precision} breaks parity: {page.breaks[0]}"
    chosen = fastest_of(built, num_slots) or "none"
    return f"{text}: {chosen} is chosen."


def _ms_by_precision(built: list[Built], num_slots: int) -> dict[str, float]:
    """The time of a segment in the smallest bucket that holds `num_slots`."""
    times_ms: dict[str, float] = {}
    for page in built:
        if page.step_ms:
            bucket = min(bucket for bucket in page.step_ms if bucket >= num_slots)
            times_ms[page.key.precision] = page.step_ms[bucket]
    return times_ms


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _digest(values: dict[str, object]) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def serve_command(bundle: Bundle, engine: str, num_slots: int) -> str:
    """The command that builds missing engines and serves the bundle."""
    return f"hrm-serve {shlex.quote(str(bundle.path))} --engine {engine} --slots {num_slots}"


def write(built: Built, plan: bytes | None = None) -> None:
    """Write a page, after its plan if one is passed: a plan without a page is ignored."""
    if plan is not None:
        atomic.write_bytes(file_of(built.key, "plan"), plan)
    atomic.write_text(file_of(built.key, "json"), built.model_dump_json(indent=2) + "\n")


def find(key: EngineKey) -> Built | None:
    """The page of the engine with this key; None unless it was built to the end."""
    built = _read(file_of(key, "json"))
    if built is None or built.key != key or not file_of(key, "plan").is_file():
        return None
    return built


def covering(key: EngineKey) -> Built | None:
    """The engine with this key, or the smallest that differs only in having more slots."""
    exact = find(key)
    if exact is not None:
        return exact
    larger: list[Built] = []
    for file in sorted(plan_folder().glob("*.json")):
        page = _read(file)
        if page is None:
            continue
        is_alike = replace(page.key, buckets=key.buckets, profiles=key.profiles) == key
        if is_alike and page.key.buckets[-1] >= key.buckets[-1]:
            larger.append(page)
    return min(larger, key=lambda page: page.key.buckets[-1], default=None)


def read_plan(bundle: Bundle, key: EngineKey) -> tuple[Built, bytes]:
    """The engine that covers this key; raises EngineUnavailableError if there is none."""
    built = covering(key)
    command = serve_command(bundle, f"tensorrt:{key.precision}", key.buckets[-1])
    if built is None:
        wanted = f"precision {key.precision} for {key.buckets[-1]} slots"
        raise EngineUnavailableError(
            f"this machine, with its power mode and TensorRT, has no engine of {wanted} yet: "
            f"`{command}` builds it."
        )
    plan = file_of(built.key, "plan")
    if not plan.is_file() or sha256_of(plan) != built.plan_sha256:
        raise EngineUnavailableError(
            f"{plan} has changed since it was built: remove it; then `{command}` builds it again."
        )
    return built, plan.read_bytes()


def file_of(key: EngineKey, kind: str) -> Path:
    """The plan, page or failure of an engine: `kind` is the ending of its name."""
    return plan_folder() / f"{key.name}.{kind}"


def _read(file: Path) -> Built | None:
    try:
        return Built.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
