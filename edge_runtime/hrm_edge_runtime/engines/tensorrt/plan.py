"""From a step graph to a TensorRT plan, on the device that will run it: strongly typed, one profile for each bucket.

On an 8 GB board the builder needs more memory than everything after it, so `prepare` starts the command
`tensorrt_build` as a process of its own and waits for its end; what it held is then free. Not run on a GPU yet; the
same code runs on TensorRT-RTX in the check without a GPU.
"""

# Without TensorRT or its stubs the types below are unknown: `make check-rtx` checks them against tensorrt-stubs.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUnnecessaryComparison=false

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.step_graph import Shape, input_shapes
from hrm_edge_runtime.engines.tensorrt import api, cache, progress
from hrm_edge_runtime.engines.tensorrt.cache import Built, EngineKey
from hrm_host import memory

if TYPE_CHECKING:
    import tensorrt

HEADLESS = "stop the desktop (sudo systemctl isolate multi-user.target), add swap, or lower --workspace-mb"

# Calculated, not measured on a Jetson: the builder's kernel library took 1.75 GB of host memory on x86 with 10.10
# (NVIDIA/TensorRT issue 4493); beside it the graph, its parsed copy and the plan, and the workspace.
BUILDER_MB = 2000
COPIES_OF_GRAPH = 4


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """How hard the builder tries; level 3 and half a gigabyte are meant for a board of 8 GB."""

    workspace_mb: int = 512
    optimization_level: int = 3


def plan_from_onnx(
    graph: Path,
    profiles: Sequence[Mapping[str, Shape]],
    *,
    settings: BuildSettings,
    phases: progress.Phases,
    timing_cache: Path | None,
    adjust: Callable[[tensorrt.IBuilderConfig], None] | None = None,
) -> bytes:
    """Build a plan; raises ValueError with TensorRT's own last words.

    Each of the `profiles` fixes the shape of every input: the narrowest profile lets the builder choose best. `adjust`
    may change the builder's configuration last: the check on a machine without a GPU names its target there.
    """
    import tensorrt as trt

    words = api.Words()
    logger = api.logger_for(words)
    builder = trt.Builder(logger)
    network = api.network_from_onnx(builder, logger, graph)
    config = _config(builder, settings)
    monitor = progress.monitor_for(phases)  # the configuration does not keep it alive
    config.progress_monitor = monitor
    for shapes in profiles:
        config.add_optimization_profile(_profile(builder, shapes))
    if timing_cache is not None:
        _attach_timing_cache(config, timing_cache)
    if adjust is not None:
        adjust(config)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ValueError(f"TensorRT {trt.__version__} builds no engine from {graph} ({words.last()}): {HEADLESS}.")
    if timing_cache is not None:
        _keep_timing_cache(config, timing_cache)
    return bytes(plan)


def build_engine(bundle: Bundle, key: EngineKey, *, settings: BuildSettings, phases: progress.Phases) -> Built:
    """Build the engine of a key and store it with its page."""
    graph, folder = bundle.graph_path(key.precision), cache.engine_dir(bundle)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    timing_cache = folder / f"timing-sm{key.compute_capability}-trt{key.tensorrt}.cache"
    profiles = [input_shapes(bundle.manifest, bucket) for bucket in key.buckets]
    plan = plan_from_onnx(graph, profiles, settings=settings, phases=phases, timing_cache=timing_cache)
    built = Built(
        key=key,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        plan_bytes=len(plan),
        graph_bytes=graph.stat().st_size,
        build_seconds=round(time.monotonic() - began, 1),
        workspace_mb=settings.workspace_mb,
        optimization_level=settings.optimization_level,
    )
    cache.write(folder, built, plan)
    return built


def build_needs_mb(graph_bytes: int, workspace_mb: int) -> int:
    """An estimate of what building an engine takes."""
    return BUILDER_MB + COPIES_OF_GRAPH * graph_bytes // 10**6 + workspace_mb


def check_memory(graph: Path, settings: BuildSettings) -> None:
    """Refuse a build that would bring the machine to its knees; raises EngineUnavailableError with the remedy."""
    left = memory.read_memory()
    needs_mb = build_needs_mb(graph.stat().st_size, settings.workspace_mb)
    if left is not None and left.allocatable_mb < needs_mb:
        raise EngineUnavailableError(
            f"building an engine takes about {needs_mb} MB and this machine can give {left.allocatable_mb} MB: "
            f"{HEADLESS}; --force tries it all the same."
        )


def prepare(bundle: Bundle, *, precision: str | None, num_slots: int) -> str:
    """Build what is not built yet in a process of its own; the precision to run, the fastest where none is given.

    The process shows its progress on standard error. Neither TensorRT nor CUDA is loaded into this process.
    """
    command = [*cache.build_command(bundle, precision=precision, num_slots=num_slots), "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise EngineUnavailableError(f"no TensorRT engine was built (status {done.returncode}): see the line above.")
    return str(json.loads(done.stdout)["chosen"])


def _config(builder: tensorrt.Builder, settings: BuildSettings) -> tensorrt.IBuilderConfig:
    import tensorrt as trt

    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb << 20)
    config.builder_optimization_level = settings.optimization_level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # the fused attention kernels are counted by name
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default; float32 would keep ten bits of each factor
    return config


def _profile(builder: tensorrt.Builder, shapes: Mapping[str, Shape]) -> tensorrt.IOptimizationProfile:
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)  # pyright: ignore[reportArgumentType] (a tuple is taken for Dims)
    return profile


def _attach_timing_cache(config: tensorrt.IBuilderConfig, file: Path) -> None:
    kept = file.read_bytes() if file.is_file() else b""
    config.set_timing_cache(config.create_timing_cache(kept), False)


def _keep_timing_cache(config: tensorrt.IBuilderConfig, file: Path) -> None:
    cache = config.get_timing_cache()
    if cache is not None:
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(bytes(cache.serialize()))
        temporary.replace(file)
