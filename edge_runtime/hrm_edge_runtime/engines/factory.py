"""One way from a bundle to an engine, whatever computes behind it: `engine_for`.

Engines are named ENGINE[:PRECISION]: `cpu` and `cuda` are ONNX Runtime, `tensorrt` is our own, `auto` the first of
tensorrt, cuda and cpu that this machine runs, and `unrolled` the graph with the whole loop, on the CPU, to check it.
Nothing is imported that the chosen engine does not need: a Jetson has no ONNX Runtime, a desktop no TensorRT.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, EngineUnavailableError
from hrm_host.board import cuda_devices

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.trt.build import Build

ENGINES = ("auto", "cpu", "cuda", "tensorrt", "unrolled")
MAX_SLOTS_CPU, MAX_SLOTS_GPU = 8, 16
LONG_SEQUENCE = 256  # tokens; with more of them each slot holds much, and even a GPU has enough to do with few
CUDA_TRIAL = """
import sys
from hrm_edge_runtime.engines.onnx import CUDA, OnnxEngine
OnnxEngine(sys.argv[1], num_slots=1, provider=CUDA).step(1)
"""
"""In a process of its own: what ONNX Runtime was compiled with says nothing, and a context would stay in this one."""
PREFERRED = {"cpu": ("fp32",), "unrolled": ("fp32",), "cuda": ("fp16", "fp32")}

_log = logging.getLogger("hrm_edge_runtime.engine")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An engine and the precision it runs; `engine` is never "auto"."""

    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.engine}:{self.precision}"


def parse_choice(text: str) -> tuple[str, str | None]:
    """Split ENGINE[:PRECISION]; the precision is None where none is given."""
    engine, colon, precision = text.partition(":")
    if engine not in ENGINES or (colon and not precision):
        raise EngineUnavailableError(f"{text!r} names no engine: write ENGINE[:PRECISION], as {', '.join(ENGINES)}.")
    return engine, precision or None


def choose(bundle: Bundle, engine: str = "auto", *, num_slots: int = 1) -> Choice:
    """The engine and precision to run: float32 on a CPU, float16 on a GPU, on TensorRT the quickest that is built."""
    named, stated = parse_choice(engine)
    named = _first_that_runs(bundle) if named == "auto" else named
    precision = stated or _preferred(bundle, named, num_slots)
    bundle.unrolled_path(precision) if named == "unrolled" else bundle.graph_path(precision)
    return Choice(engine=named, precision=precision)


def max_slots(bundle: Bundle, engine: str = "tensorrt") -> int:
    return MAX_SLOTS_GPU if engine != "cpu" and bundle.manifest.seq_len <= LONG_SEQUENCE else MAX_SLOTS_CPU


def presumed(bundle: Bundle, engine: str = "auto") -> Choice:
    """What `prepare` chooses, as far as it is known before TensorRT's engines are built: their precision may differ."""
    named, precision = parse_choice(engine)
    named = _first_that_runs(bundle) if named == "auto" else named
    if named == "tensorrt" and precision is None:
        return Choice(engine=named, precision=next(iter(bundle.manifest.precisions)))
    return choose(bundle, f"{named}:{precision}" if precision else named)


def prepare(
    bundle: Bundle,
    engine: str = "auto",
    *,
    num_slots: int | None,
    to_judge: bool = False,
    watch: Callable[[Build], None] | None = None,
) -> Choice:
    """Like `choose`, but builds every TensorRT engine this needs first; that takes minutes the first time.

    Without `num_slots` for as many as may be tried. A TensorRT engine that breaks the golden traces is refused, unless
    it is opened `to_judge` it. `watch` gets the build when it begins.
    """
    choice, slots = presumed(bundle, engine), num_slots or max_slots(bundle)
    if choice.engine != "tensorrt":
        return choice
    from hrm_edge_runtime.engines.trt import build

    stated = parse_choice(engine)[1]
    running = build.Build(bundle, precision=stated, num_slots=slots)
    if watch is not None:
        watch(running)
    return replace(choice, precision=running.result(to_judge=to_judge))


def engine_for(
    bundle: Bundle,
    *,
    engine: str = "auto",
    num_slots: int,
    num_threads: int | None = None,
    want_logits: bool | None = None,
) -> Engine:
    """Open a bundle on the chosen engine, which this never builds; raises BundleError or EngineUnavailableError."""
    choice = choose(bundle, engine, num_slots=num_slots)
    want_logits = bundle.manifest.attempts == "hypotheses" if want_logits is None else want_logits
    if choice.engine == "tensorrt":
        from hrm_edge_runtime.engines.trt import cache

        return cache.open_engine(bundle, precision=choice.precision, num_slots=num_slots, want_logits=want_logits)
    if importlib.util.find_spec("onnxruntime") is None:
        raise EngineUnavailableError(
            "onnxruntime is not installed: install hrm-edge[serve], or on a Jetson choose --engine tensorrt."
        )
    if choice.engine == "unrolled":
        from hrm_edge_runtime.engines.unrolled import UnrolledEngine

        return UnrolledEngine(bundle, precision=choice.precision, num_slots=num_slots, num_threads=num_threads)
    from hrm_edge_runtime.engines import onnx

    return onnx.engine_from_bundle(
        bundle,
        precision=choice.precision,
        num_slots=num_slots,
        num_threads=num_threads,
        provider=onnx.CUDA if choice.engine == "cuda" else onnx.CPU,
        want_logits=want_logits,
    )


def num_gpus() -> int:
    return cuda_devices()[0]


def _first_that_runs(bundle: Bundle) -> str:
    if num_gpus() == 0:
        return "cpu"
    from hrm_edge_runtime.engines.trt.drivers import is_installed

    if is_installed("tensorrt") and (is_installed("cuda.bindings") or is_installed("pycuda")):
        return "tensorrt"
    if importlib.util.find_spec("onnxruntime") is None:
        return "cpu"
    graph = bundle.graph_path(_preferred(bundle, "cuda", num_slots=1))
    tried = subprocess.run([sys.executable, "-c", CUDA_TRIAL, str(graph)], capture_output=True, text=True)
    if tried.returncode:
        reason = tried.stderr.strip().rpartition("\n")[2]
        _log.warning("auto runs on the CPU although there is a GPU (status %d: %s)", tried.returncode, reason)
    return "cpu" if tried.returncode else "cuda"


def _preferred(bundle: Bundle, engine: str, num_slots: int) -> str:
    if engine == "tensorrt":
        from hrm_edge_runtime.engines.trt import cache

        return cache.fastest(bundle, num_slots=num_slots)
    held = bundle.manifest.precisions
    return next((one for one in PREFERRED[engine] if one in held), next(iter(held)))
