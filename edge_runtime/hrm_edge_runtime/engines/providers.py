"""ONNX Runtime's execution providers: which one runs a graph, with which options, and whether it really does.

ONNX Runtime falls back to the CPU in silence where a provider's libraries are missing, and its list of providers says
what it was compiled with rather than what works, so only an opened session counts. The CUDA and TensorRT providers were
not run on a GPU yet.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort

from hrm_edge_runtime.bundle import BundleError
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.step_graph import input_shapes
from hrm_edge_runtime.manifest import Manifest

INSTALL_GPU = "install onnxruntime-gpu for this machine's CUDA in place of onnxruntime, or choose --engine cpu"


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One way to run a graph; `device` is where ONNX Runtime keeps the carry, None for numpy arrays."""

    name: str
    device: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    behind: tuple["Provider", ...] = ()


CPU = Provider(name="CPUExecutionProvider")
# TensorFloat-32 keeps ten bits of a product's factors: no float32 parity survives that over 16 segments.
CUDA = Provider(name="CUDAExecutionProvider", device="cuda", options={"use_tf32": "0"})


def tensorrt_provider(manifest: Manifest, precision: str, *, num_slots: int, cache: Path) -> Provider:
    """ONNX Runtime's own TensorRT provider: its engines kept in `cache`, one profile from 1 to `num_slots` rows.

    It builds weakly typed networks, so the kinds of number that a graph holds are allowed by flag.
    """
    options = {
        "trt_fp16_enable": str(precision != "fp32"),
        "trt_int8_enable": str(precision == "int8"),
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(cache),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(cache),
        "trt_profile_min_shapes": _shapes(manifest, 1),
        "trt_profile_opt_shapes": _shapes(manifest, num_slots),
        "trt_profile_max_shapes": _shapes(manifest, num_slots),
    }
    return Provider(name="TensorrtExecutionProvider", device="cuda", options=options, behind=(CUDA,))


def _shapes(manifest: Manifest, num_rows: int) -> str:
    shapes = input_shapes(manifest, num_rows)
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def open_session(path: Path, provider: Provider, num_threads: int | None) -> ort.InferenceSession:
    """Open a graph; raises BundleError for one that does not load, EngineUnavailableError where only the CPU would run.

    `num_threads` None takes every core this process may use.
    """
    if provider.name not in ort.get_available_providers():
        raise EngineUnavailableError(f"this ONNX Runtime has no {provider.name}: {INSTALL_GPU}.")
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = num_threads or _num_cores()
    options.inter_op_num_threads = 1
    # Idle workers would spin and take the cores from the HTTP process (microsoft/onnxruntime pull request 11841).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [(one.name, one.options) for one in (provider, *provider.behind)]
    try:
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime has a class for each kind of failure and no common one of its own
        reason = " ".join(str(error).split())
        raise BundleError(f"{path} does not load as an ONNX graph ({reason}): export the bundle again.") from error
    if session.get_providers()[0] != provider.name:
        raise EngineUnavailableError(f"{provider.name} does not start on this machine: {INSTALL_GPU}.")
    return session


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
