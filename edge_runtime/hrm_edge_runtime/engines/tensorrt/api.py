"""The one place that knows TensorRT's Python module, from 10.3 (JetPack 6.1) to 11: only names that all of them have.

Networks are strongly typed: the kinds of number stand in the ONNX file and nowhere else (11 knows no other way).
"""

# Without TensorRT or its stubs the types below are unknown: `make check-rtx` checks them against tensorrt-stubs.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUnnecessaryComparison=false

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_edge_runtime.engines.engine import EngineUnavailableError

if TYPE_CHECKING:
    import tensorrt

OLDEST = (10, 3)
NEWEST_MAJOR = 11
INSTALL = "use the one of JetPack 6.1 or newer (apt install python3-libnvinfer), or choose --engine cpu"

_log = logging.getLogger("hrm_edge_runtime.tensorrt")


def version() -> str:
    """TensorRT's; raises EngineUnavailableError where there is none, or one out of range."""
    if importlib.util.find_spec("tensorrt") is None:
        raise EngineUnavailableError(f"TensorRT is not installed for this Python: {INSTALL}.")
    import tensorrt as trt

    major, minor = (int(part) for part in trt.__version__.split(".")[:2])
    if (major, minor) < OLDEST or major > NEWEST_MAJOR:
        known = f"{'.'.join(map(str, OLDEST))} to {NEWEST_MAJOR}"
        raise EngineUnavailableError(f"TensorRT {trt.__version__} is not one this program knows ({known}): {INSTALL}.")
    return trt.__version__


class Words:
    """What TensorRT said last in anger, for the sentence that follows."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def last(self) -> str:
        return self.errors[-1] if self.errors else "TensorRT gives no reason"


def logger_for(words: Words) -> tensorrt.ILogger:
    """TensorRT's logger: errors and warnings reach this program's log, errors are kept in `words`."""
    import tensorrt as trt

    severity = trt.ILogger.Severity
    levels = {severity.INTERNAL_ERROR: logging.ERROR, severity.ERROR: logging.ERROR, severity.WARNING: logging.WARNING}

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # pybind11 wants its own initialiser, not super()'s

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                words.errors.append(" ".join(msg.split()))
            _log.log(level, "TensorRT: %s", msg)

    return Logger()


def network_from_onnx(builder: tensorrt.Builder, logger: tensorrt.ILogger, graph: Path) -> tensorrt.INetworkDefinition:
    """Parse a graph into a strongly typed network; raises ValueError naming the first node refused."""
    import tensorrt as trt

    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        raise ValueError(f"TensorRT {trt.__version__} refuses {graph} ({_refusal(parser)}): export the bundle again.")
    return network


def _refusal(parser: tensorrt.OnnxParser) -> str:
    if parser.num_errors == 0:
        return "without a reason"
    first = parser.get_error(0)
    more = f", and {parser.num_errors - 1} more" if parser.num_errors > 1 else ""
    return f"node {first.node_name()!r} of type {first.node_operator()}: {first.desc()}{more}"


def engine_from_plan(logger: tensorrt.ILogger, plan: bytes) -> tensorrt.ICudaEngine | None:
    """Open a plan; None where this TensorRT or GPU does not take it. The runtime lives as long as the engine does."""
    import tensorrt as trt

    runtime = trt.Runtime(logger)
    return runtime.deserialize_cuda_engine(plan)


def context_for(engine: tensorrt.ICudaEngine, *, profile: int, scratch: int, stream: int) -> tensorrt.IExecutionContext:
    """An execution context on one profile whose scratch memory the caller owns, so that contexts can share it."""
    import tensorrt as trt

    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    if context is None:
        raise EngineUnavailableError("TensorRT makes no execution context: use fewer --slots, or free memory.")
    context.set_device_memory(scratch, engine.device_memory_size_v2)
    if not context.set_optimization_profile_async(profile, stream):
        raise EngineUnavailableError(f"TensorRT refuses its profile {profile}: build the engine again.")
    return context


def layer_names(engine: tensorrt.ICudaEngine) -> str:
    """What the engine's layers are, as JSON text; kernel names stand in it."""
    import tensorrt as trt

    return engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
