"""The only module that knows TensorRT's Python API.

It uses only names that all versions from 10.3 (JetPack 6.1) to 11 have.
"""

# Without TensorRT the types below are unknown; `make check-trt` runs them through its bindings.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false, reportUnnecessaryComparison=false

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hrm_edge_runtime.engines.engine import EngineUnavailableError, Shape
from hrm_edge_runtime.engines.trt.causes import Cause, TensorRTError, cause_of
from hrm_host import atomic
from hrm_host.memory import WORKSPACE_MB
from hrm_host.progress import Stages

if TYPE_CHECKING:
    import tensorrt

OLDEST = (10, 3)
NEWEST_MAJOR = 11
INSTALL = (
    "use the one of JetPack 6.1 or newer (apt install python3-libnvinfer), or choose --engine cpu"
)
LEVEL = 3  # of optimization, of 5: suits an 8 GB board
TACTIC_MB = 2048  # bounds the trial of a kernel
MIN_SCRATCH_BYTES = 256  # a context without memory may not run, even if its shapes need none
LIBRARIES = (
    "sudo apt-get install nvidia-l4t-dla-compiler on a Jetson, then sudo ldconfig; "
    "or choose --engine cpu"
)

_Made = TypeVar("_Made")

_log = logging.getLogger("hrm_edge_runtime.tensorrt")


def version() -> str:
    """TensorRT's version; raises EngineUnavailableError if it is missing or out of range."""
    if importlib.util.find_spec("tensorrt") is None:
        raise TensorRTError("TensorRT is not installed for this Python", "machine", INSTALL)
    try:
        import tensorrt as trt
    except Exception as error:  # a library of another version can raise any error
        raise TensorRTError(f"TensorRT does not load ({error})", "machine", LIBRARIES) from error

    numbers = re.match(r"(\d+)\.(\d+)", getattr(trt, "__version__", ""))
    if numbers is None:
        raise TensorRTError(f"{trt} is not NVIDIA's", "machine", f"move it away, and {INSTALL}")
    release = (int(numbers[1]), int(numbers[2]))
    if release < OLDEST or release[0] > NEWEST_MAJOR:
        known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST_MAJOR}"
        problem = f"TensorRT {trt.__version__} is not supported (only {known})"
        raise TensorRTError(problem, "machine", INSTALL)
    return trt.__version__


@contextmanager
def harmless() -> Generator[None]:
    """Log an exception instead of raising it: raised in a callback, it would cancel a build."""
    try:
        yield
    except Exception:
        _log.exception("a callback of TensorRT failed")


def new_logger() -> Any:
    """A logger that forwards messages; `last_error` is the reason that functions do not return."""
    import tensorrt as trt

    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
    }

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # pybind11 requires an explicit call of its initializer
            self.last_error = "TensorRT gives no reason"

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                self.last_error = " ".join(msg.split())
            with harmless():
                _log.log(level, "TensorRT: %s", msg)

    return Logger()


def check_start() -> None:
    """Start CUDA as a build and an engine do; raises EngineUnavailableError if that fails.

    Without CUDA some versions return a bad runtime whose first use ends the process, so call this
    in a process of its own.
    """
    import tensorrt as trt

    logger = new_logger()
    _started(trt.Builder, logger)
    runtime = _started(trt.Runtime, logger)
    runtime.deserialize_cuda_engine(b"not a plan")


def _started(factory: Callable[[tensorrt.ILogger], _Made], logger: Any) -> _Made:
    try:
        return factory(logger)
    except TypeError as error:  # pybind11 raises it when TensorRT returns a null pointer
        raise _failure("does not start here", logger.last_error, "machine") from error


def _failure(problem: str, words: str, cause: Cause) -> TensorRTError:
    return TensorRTError(f"TensorRT {version()} {problem} ({words})", cause)


def _rejection(problem: str, words: str) -> TensorRTError:
    """The failure of a build: TensorRT rejects the graph unless its words name another cause."""
    cause = cause_of(words)
    return _failure(problem, words, "rejected" if cause == "unknown" else cause)


def _made(what: str, made: _Made | None) -> _Made:
    """Return `made`; raises TensorRTError for None, TensorRT's answer without memory."""
    if made is None:
        raise TensorRTError(f"TensorRT {version()} cannot create {what}", "memory")
    return made


class ShapeRange(NamedTuple):
    """The shapes of one input in a profile, in the order of TensorRT's `set_shape`."""

    smallest: Shape
    best: Shape
    largest: Shape


def plan_from_onnx(
    graph: Path,
    profiles: Sequence[Mapping[str, ShapeRange]],
    *,
    stages: Stages,
    timing_cache: Path | None,
    workspace_mb: int = WORKSPACE_MB,
    level: int = LEVEL,
    adjust: Callable[[tensorrt.IBuilderConfig], None] | None = None,
) -> bytes:
    """Build a plan; raises TensorRTError with TensorRT's last error.

    Each profile holds the shapes of every input. `adjust` may change the builder's configuration
    last: the check on a machine without a GPU sets its target there.
    """
    import tensorrt as trt

    logger = new_logger()
    builder = _started(trt.Builder, logger)
    network = network_from_onnx(builder, logger, graph)
    config = _config(builder, workspace_mb, level)
    monitor = _monitor_for(stages)  # the configuration does not keep a reference to it
    config.progress_monitor = monitor
    for ranges in profiles:
        config.add_optimization_profile(_profile(builder, ranges))
    if timing_cache is not None:
        _use_timing_cache(config, timing_cache, logger)
    if adjust is not None:
        adjust(config)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise _rejection(f"cannot build {graph}", logger.last_error)
    if timing_cache is not None:
        timed = config.get_timing_cache()
        times = None if timed is None else timed.serialize()
        if times is not None:
            atomic.write_bytes(timing_cache, bytes(times))
    return bytes(plan)


def _use_timing_cache(config: tensorrt.IBuilderConfig, file: Path, logger: Any) -> None:
    """Give the builder the kernel times of earlier builds."""
    kept = file.read_bytes() if file.is_file() else b""
    cache = config.create_timing_cache(kept)
    is_taken = cache is not None and config.set_timing_cache(cache, False)
    if is_taken:
        return
    if kept:
        _log.warning("TensorRT does not take %s, so kernels are timed anew", file)
    empty = config.create_timing_cache(b"")
    if empty is None:
        words = logger.last_error
        raise _failure("cannot create a timing cache", words, cause_of(words))
    config.set_timing_cache(empty, False)


def network_from_onnx(
    builder: tensorrt.Builder, logger: tensorrt.ILogger, graph: Path
) -> tensorrt.INetworkDefinition:
    """Parse into a strongly typed network, the only kind of TensorRT 11.

    Raises TensorRTError with the first node that the parser rejects.
    """
    import tensorrt as trt

    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = _made("a network", builder.create_network(flags))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        reason = "without a reason"
        if parser.num_errors:
            first = parser.get_error(0)
            reason = f"node {first.node_name()!r} of type {first.node_operator()}: {first.desc()}"
        if parser.num_errors > 1:
            reason += f", and {parser.num_errors - 1} more"
        raise _rejection(f"rejects {graph}", reason)
    return network


def _config(builder: tensorrt.Builder, workspace_mb: int, level: int) -> tensorrt.IBuilderConfig:
    import tensorrt as trt

    config = _made("a configuration", builder.create_builder_config())
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_mb << 20)
    config.set_memory_pool_limit(trt.MemoryPoolType.TACTIC_DRAM, TACTIC_MB << 20)
    config.builder_optimization_level = level
    # small kernels gain nothing from further streams, and each takes scratch memory of its own
    config.max_aux_streams = 0
    # The build counts fused attention kernels by name, which needs detailed profiles.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    # TF32 is on by default and keeps only ten bits of each factor
    config.clear_flag(trt.BuilderFlag.TF32)
    return config


def _profile(
    builder: tensorrt.Builder, ranges: Mapping[str, ShapeRange]
) -> tensorrt.IOptimizationProfile:
    profile = _made("a profile", builder.create_optimization_profile())
    for name, shapes in ranges.items():
        try:
            # the binding accepts tuples as Dims
            profile.set_shape(name, *shapes)  # pyright: ignore[reportArgumentType]
        except RuntimeError as error:
            sizes = f"{shapes.smallest} to {shapes.largest}"
            raise _rejection(f"rejects {name} of shape {sizes}", str(error)) from error
    return profile


def _monitor_for(stages: Stages) -> tensorrt.IProgressMonitor:
    """Shows TensorRT's phases; the builder's threads call it."""
    import tensorrt as trt

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            # pybind11 requires an explicit call of its initializer
            trt.IProgressMonitor.__init__(self)
            self._num_steps: dict[str, int] = {}
            self._lock = threading.Lock()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            del parent_phase
            with self._lock, harmless():
                self._num_steps[phase_name] = num_steps
                stages.show(f"TensorRT: {phase_name}", 0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock, harmless():
                if phase_name in self._num_steps:
                    stages.show(f"TensorRT: {phase_name}", step + 1, self._num_steps[phase_name])
            return True  # returning False would stop the build

        def phase_finish(self, phase_name: str) -> None:
            with self._lock, harmless():
                if self._num_steps.pop(phase_name, None) is not None:
                    stages.remove(f"TensorRT: {phase_name}")

    return Monitor()


def engine_from_plan(plan: bytes, logger: Any) -> tensorrt.ICudaEngine:
    """Open a plan; raises TensorRTError. The engine keeps its runtime alive."""
    import tensorrt as trt

    runtime = _started(trt.Runtime, logger)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        problem = f"TensorRT {version()} cannot open this engine ({logger.last_error})"
        raise TensorRTError(problem, cause_of(logger.last_error), "build it again")
    return engine


def context_for(
    engine: tensorrt.ICudaEngine,
    *,
    profile: int,
    shapes: Mapping[str, Shape],
    stream: int,
) -> tensorrt.IExecutionContext:
    """An execution context on one profile and its shapes, which still lacks scratch memory."""
    import tensorrt as trt

    if profile >= engine.num_optimization_profiles:  # 10.3 to 10.12 would end the process
        raise EngineUnavailableError(
            f"the plan has {engine.num_optimization_profiles} profiles and not profile {profile}: "
            "build the engine again."
        )
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    if context is None:
        raise EngineUnavailableError(
            "TensorRT cannot create an execution context: use fewer --slots, or free memory."
        )
    try:
        is_set = context.set_optimization_profile_async(profile, stream)
        rejected: list[str] = []
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                rejected.append(name)
    except RuntimeError as error:  # the binding raises when the C++ function returns false
        raise EngineUnavailableError(
            f"TensorRT rejects profile {profile} ({error}): build the engine again."
        ) from error
    if rejected or not is_set:
        raise EngineUnavailableError(
            f"TensorRT rejects {rejected} in profile {profile}: build the engine again."
        )
    return context


def scratch_bytes_of(contexts: Iterable[tensorrt.IExecutionContext]) -> int:
    """The scratch memory that contexts need if they run one at a time, each in its own shapes.

    The plan itself names the need of its largest profile, which may not be open.
    """
    needs_bytes = [context.update_device_memory_size_for_shapes() for context in contexts]
    return max(MIN_SCRATCH_BYTES, *needs_bytes)


def layer_names(engine: tensorrt.ICudaEngine) -> str:
    import tensorrt as trt

    inspector = _made("an inspector", engine.create_engine_inspector())
    return inspector.get_engine_information(trt.LayerInformationFormat.JSON) or ""
