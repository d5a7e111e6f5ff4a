"""Opens a bundle on any engine: `engine_for`.

Engines are named ENGINE[:PRECISION]:

- `cpu` and `cuda` run on ONNX Runtime, `tensorrt` on TensorRT.
- `auto` is the first of tensorrt, cuda and cpu that this machine runs. On a CPU it runs the fastest
  precision that holds its accuracy, once CPU times are measured.
- `unrolled` runs the graph that contains the whole loop on the CPU, to check that graph.

Only the chosen engine's modules are imported: a Jetson lacks ONNX Runtime, a desktop TensorRT.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import times
from hrm_edge_runtime.engines.engine import Engine, EngineUnavailableError, max_slots
from hrm_host.machine import cuda_devices

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.trt.building import Build

ENGINES = ("auto", "cpu", "cuda", "tensorrt", "unrolled")
CUDA_TRIAL = """
import sys
from hrm_edge_runtime.engines.onnx import CUDA, OnnxEngine
OnnxEngine(sys.argv[1], num_slots=1, provider=CUDA).step(1)
"""
"""Runs in a process of its own, since a CUDA context would stay in this one.

ONNX Runtime's list of providers only shows what it was compiled with.
"""
TENSORRT_TRIAL = """
import sys
from hrm_edge_runtime.engines.trt import api, cuda
try:
    api.version()
    cuda.look()
    api.check_start()
except ValueError as error:
    sys.exit(str(error))
"""
"""Imports TensorRT, starts the driver and creates a builder, in a process of its own: TensorRT's
files may be there and belong to another CUDA, or end the process.
"""
OPENED_WHERE_USED = "tensorrt"
"""The engine that is opened in the thread that uses it, because its context belongs to a thread."""
TRIAL_S = 120.0  # a driver that takes longer is stuck
PREFERRED = {"cpu": ("fp32",), "unrolled": ("fp32",), "cuda": ("fp16", "fp32")}

_log = logging.getLogger("hrm_edge_runtime.engine")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An engine and the precision it runs; `engine` is never "auto".

    `reason` says why a build on TensorRT chose the precision.
    """

    engine: str
    precision: str
    reason: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.engine}:{self.precision}"


def parse_choice(text: str) -> tuple[str, str | None]:
    """Split ENGINE[:PRECISION]; the precision is None if the text does not name one.

    Raises ValueError for another engine.
    """
    engine, colon, precision = text.partition(":")
    if engine not in ENGINES or (colon and not precision):
        known = ", ".join(ENGINES)
        raise ValueError(
            f"{text!r} does not name an engine: write ENGINE[:PRECISION] with one of {known}."
        )
    return engine, precision or None


def choose(bundle: Bundle, engine: str = "auto", *, num_slots: int = 1) -> Choice:
    """The engine and precision to run; raises BundleError if the bundle lacks its graph.

    The default is float32 on `cpu`, float16 on a GPU and the fastest built engine on TensorRT.
    A precision that the manifest calls undecided runs only if it is named.
    """
    named, precision = _resolved(bundle, engine)
    if precision is None:
        precision = _preferred(bundle, named, num_slots)
    if named == "unrolled":
        bundle.unrolled_path(precision)
    else:
        bundle.graph_path(precision)
    return Choice(engine=named, precision=precision)


def presumed(bundle: Bundle, engine: str = "auto") -> Choice:
    """A guess at what `prepare` will choose; on TensorRT the precision may differ."""
    named, precision = _resolved(bundle, engine)
    if named == "tensorrt" and precision is None:
        first = next(iter(bundle.manifest.precisions))
        return Choice(engine=named, precision=first)
    if precision is None:
        return choose(bundle, named)
    return choose(bundle, f"{named}:{precision}")


def _resolved(bundle: Bundle, engine: str) -> tuple[str, str | None]:
    named, precision = parse_choice(engine)
    if named == "auto":
        named = _first_that_runs(bundle)
        if named == "cpu" and precision is None:
            precision = times.fastest(bundle)
    return named, precision


def prepare(
    bundle: Bundle,
    engine: str = "auto",
    *,
    num_slots: int | None,
    build_command: Sequence[str],
    to_judge: bool = False,
    watch: Callable[[Build], None] | None = None,
) -> Choice:
    """Like `choose`, but first builds the TensorRT engines that it needs, which takes minutes.

    `num_slots` defaults to `max_slots`. `build_command` starts a build of a precision. `watch` is
    called with the build before it begins. Raises
    EngineUnavailableError for a TensorRT engine that breaks the golden traces, unless it is opened
    `to_judge` it.
    """
    choice = presumed(bundle, engine)
    if choice.engine != "tensorrt":
        return choice
    from hrm_edge_runtime.engines.trt.building import Build

    _, precision = parse_choice(engine)
    build = Build(
        bundle,
        precision=precision,
        num_slots=num_slots or max_slots(bundle),
        command=build_command,
    )
    if watch is not None:
        watch(build)
    precision, reason = build.result(to_judge=to_judge)
    return replace(choice, precision=precision, reason=reason)


def engine_for(
    bundle: Bundle,
    *,
    engine: str = "auto",
    num_slots: int,
    num_threads: int | None = None,
    want_logits: bool | None = None,
) -> Engine:
    """Open a bundle on an engine that is built; raises BundleError or EngineUnavailableError."""
    choice = choose(bundle, engine, num_slots=num_slots)
    if want_logits is None:
        want_logits = bundle.manifest.attempt_kind == "hypotheses"
    if choice.engine == "tensorrt":
        from hrm_edge_runtime.engines.trt import cache

        return cache.open_engine(
            bundle, precision=choice.precision, num_slots=num_slots, want_logits=want_logits
        )
    try:
        from hrm_edge_runtime.engines import onnx, unrolled
    except Exception as error:  # built for another NumPy it can raise any error
        raise EngineUnavailableError(
            f"onnxruntime does not load ({error}): repair it, install hrm-edge[serve], "
            "or on a Jetson choose --engine tensorrt."
        ) from error
    if choice.engine == "unrolled":
        return unrolled.UnrolledEngine(
            bundle, precision=choice.precision, num_slots=num_slots, num_threads=num_threads
        )
    provider = onnx.CUDA if choice.engine == "cuda" else onnx.CPU
    return onnx.engine_from_bundle(
        bundle,
        precision=choice.precision,
        num_slots=num_slots,
        num_threads=num_threads,
        provider=provider,
        want_logits=want_logits,
    )


def num_gpus() -> int:
    num_devices, *_ = cuda_devices()
    return num_devices


def _first_that_runs(bundle: Bundle) -> str:
    """The first of tensorrt, cuda and cpu that this machine runs; logs why it skips one."""
    if num_gpus() == 0:
        return "cpu"
    from hrm_edge_runtime.engines.trt.drivers import is_installed

    problem = "it is not installed"
    has_bindings = is_installed("cuda.bindings") or is_installed("pycuda")
    if has_bindings and is_installed("tensorrt"):
        found = tensorrt_problem()
        if found is None:
            return "tensorrt"
        problem = found
    if importlib.util.find_spec("onnxruntime") is None:
        raise EngineUnavailableError(
            f"TensorRT does not run here ({problem}) and onnxruntime is not installed: "
            "install hrm-edge[serve], or repair TensorRT."
        )
    graph = bundle.graph_path(_preferred(bundle, "cuda", num_slots=1))
    problem = _problem_of(CUDA_TRIAL, str(graph))
    if problem is None:
        return "cuda"
    _log.warning("auto runs on the CPU although there is a GPU (%s)", problem)
    return "cpu"


@functools.cache
def tensorrt_problem() -> str | None:
    """Why TensorRT does not start here, or None; tried and logged once in each process."""
    problem = _problem_of(TENSORRT_TRIAL)
    if problem is not None:
        _log.warning("auto passes over TensorRT and tries CUDA and the CPU (%s)", problem)
    return problem


def check_start() -> None:
    """Raise TensorRTError if TensorRT and CUDA do not start now; tried in a child."""
    from hrm_edge_runtime.engines.trt.causes import TensorRTError

    problem = _problem_of(TENSORRT_TRIAL)
    if problem is not None:
        raise TensorRTError(f"TensorRT does not start here ({problem.rstrip('.')})", "machine")


def _problem_of(trial: str, *arguments: str) -> str | None:
    """Run Python code in a process of its own; returns its status and last line if it fails."""
    from hrm_edge_runtime.engines.trt.causes import describe_status

    command = [sys.executable, "-c", trial, *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S)
    except subprocess.TimeoutExpired:
        return f"the trial did not end within {TRIAL_S:g} s"
    if ended.returncode == 0:
        return None
    last_line = ended.stderr.strip().rpartition("\n")[2]
    return f"the trial {describe_status(ended.returncode)}: {last_line}"


def _preferred(bundle: Bundle, engine: str, num_slots: int) -> str:
    if engine == "tensorrt":
        from hrm_edge_runtime.engines.trt import cache

        return cache.fastest(bundle, num_slots=num_slots)
    for precision in PREFERRED[engine]:
        if precision in bundle.manifest.decided:
            return precision
    return next(iter(bundle.manifest.precisions))
