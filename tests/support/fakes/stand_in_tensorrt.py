"""A stand-in for TensorRT: what the program uses of its Python module, and nothing else.

`tensorrt` is this module, or NVIDIA's own bindings over these classes (`nvidia_bindings`). Public
names, parameters and classes are NVIDIA's: `make check-trt` runs the tests through those bindings.
Tensor addresses are real addresses, and a segment runs on ONNX Runtime over them when somebody
waits for the stream: what the engine around it computes is right or wrong as a whole. It cannot
show TensorRT's own numbers, times and memory.

FAKE_TENSORRT_FAILS names what fails: a function that returns None, `builder` and `runtime` (CUDA
does not start), `bad pointer` (the runtime, which ends the process at its first use), `profile`,
`step`, `capture`, or `kill` and a graph's file.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from pathlib import Path
from typing import Any

import fake_gpu
import numpy as np
import onnxruntime as ort

__version__ = os.environ.get("FAKE_TENSORRT_VERSION", "10.3.0")
SCRATCH_BYTES = 4096  # of each row
RAISES_FOR_A_PROFILE = (10, 13)  # the bindings before it crash if TensorRT rejects a profile

NUMPY_OF = {
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(bool)": np.bool_,
}
Size = int  # of 64 bits, as are addresses and streams
BuilderFlag = IntEnum("BuilderFlag", ["TF32"])
ExecutionContextAllocationStrategy = IntEnum("ExecutionContextAllocationStrategy", ["USER_MANAGED"])
LayerInformationFormat = IntEnum("LayerInformationFormat", ["JSON"])
MemoryPoolType = IntEnum("MemoryPoolType", ["WORKSPACE", "TACTIC_DRAM"])
NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", ["STRONGLY_TYPED"])
ProfilingVerbosity = IntEnum("ProfilingVerbosity", ["DETAILED"])


class Dims(tuple[int, ...]):
    """A shape; any tuple passes for one."""


class ILogger:
    Severity = IntEnum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING"], start=0)

    def log(self, severity: int, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


def _fails(what: str) -> bool:
    return os.environ.get("FAKE_TENSORRT_FAILS") == what


def _unless_it_fails(function: str, made: Any) -> Any:
    """What a function returns: `made`, or None if it is to fail."""
    return None if _fails(function) else made


def _start(what: str, logger: ILogger) -> None:
    """Fail as pybind11 does when TensorRT's factory returns a null pointer."""
    if _fails(what):
        logger.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")


class Builder:
    def __init__(self, logger: ILogger) -> None:
        _start("builder", logger)
        self._logger = logger

    def create_network(self, flags: int) -> INetworkDefinition | None:
        del flags
        return _unless_it_fails("create_network", INetworkDefinition())

    def create_builder_config(self) -> IBuilderConfig | None:
        return _unless_it_fails("create_builder_config", IBuilderConfig(self._logger))

    def create_optimization_profile(self) -> IOptimizationProfile | None:
        return _unless_it_fails("create_optimization_profile", IOptimizationProfile())

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> IHostMemory | None:
        return _on_another_thread(lambda: _build(network, config, self._logger))


def _on_another_thread(work: Callable[[], Any]) -> Any:
    """Run `work` on a thread that `threading` does not know, as TensorRT's builder does."""
    ended = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:
            ended.set_exception(error)

    _thread.start_new_thread(run, ())
    return ended.result()


class INetworkDefinition:
    _onnx = b""
    _name = ""


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes = {}

    def set_shape(self, input: str, min: Dims, opt: Dims, max: Dims) -> None:
        for selector, shape in enumerate((min, opt, max)):
            if not self._set_dimensions(input, selector, shape):
                raise RuntimeError("Shape provided for min is inconsistent with other shapes.")

    def _set_dimensions(self, name: str, selector: int, shape: Dims) -> bool:
        chosen = self._shapes.setdefault(name, [])
        assert selector == len(chosen), "the smallest shape comes first, and the largest last"
        chosen.append(list(shape))
        return all(size >= 0 for size in shape) and chosen == sorted(chosen)


class IBuilderConfig:
    builder_optimization_level: int = 3
    profiling_verbosity: ProfilingVerbosity | None = None
    max_aux_streams: int = -1
    progress_monitor: IProgressMonitor | None = None

    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self._profiles = []
        self._cleared = set()
        self._limits = {}
        self._timing_cache = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: Size) -> None:
        self._limits[pool.name] = pool_size

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._cleared.add(flag.name)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        if _fails("create_timing_cache"):
            self._logger.log(ILogger.Severity.ERROR, "Error Code 2: no timing cache")
        return _unless_it_fails("create_timing_cache", ITimingCache(serialized_timing_cache))

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache._times.startswith(b"another"):
            return False
        self._timing_cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return _unless_it_fails("get_timing_cache", self._timing_cache)


class ITimingCache:
    def __init__(self, times: bytes) -> None:
        self._times = times

    def serialize(self) -> IHostMemory | None:
        return _unless_it_fails("serialize", IHostMemory(self._times + b"timed "))


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        assert logger is not None
        self._network = network
        self._errors = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def parse_from_file(self, model: str) -> bool:
        self._network._onnx = Path(model).read_bytes()
        self._network._name = Path(model).name
        if b"DynamicQuantizeLinear" in self._network._onnx:
            self._errors.append(ParserError())
        return not self._errors

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]


class ParserError:
    def desc(self) -> str:
        return "no importer for this operator"

    def node_name(self) -> str:
        return "a_node"

    def node_operator(self) -> str:
        return "DynamicQuantizeLinear"


class IHostMemory:
    _item_type = 2  # INT8

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._size = len(content)

    def __bytes__(self) -> bytes:
        return self._content


def _build(
    network: INetworkDefinition, config: IBuilderConfig, logger: ILogger
) -> IHostMemory | None:
    assert "TF32" in config._cleared
    monitor, phase = config.progress_monitor, "Building Engine"
    monitor.phase_start(phase, None, len(config._profiles))
    for step in range(len(config._profiles)):
        if not monitor.step_complete(phase, step):
            return None
    monitor.phase_finish(phase)
    print(os.environ.get("FAKE_TENSORRT_PRINTS", ""), end="")
    gates = os.environ.get("FAKE_TENSORRT_WAITS_IN")
    while gates and not Path(gates, network._name).exists():
        time.sleep(0.01)
    if _fails(f"kill {network._name}"):
        print("[TRT] timing a kernel of", network._name, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if _fails("build"):
        logger.log(ILogger.Severity.ERROR, "Error Code 2: OutOfMemory\n(no further information)")
        return None
    settings = {"limits": config._limits, "aux_streams": config.max_aux_streams}
    profiles = [profile._shapes for profile in config._profiles]
    head = json.dumps({"version": __version__, "profiles": profiles, **settings})
    return IHostMemory(head.encode() + b"\n" + network._onnx)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        _start("runtime", logger)
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        if _fails("bad pointer"):
            os.kill(os.getpid(), signal.SIGSEGV)
        head, separator, onnx = serialized_engine.partition(b"\n")
        if not separator:
            self._logger.log(ILogger.Severity.ERROR, "the plan is not one of TensorRT")
            return None
        described = json.loads(head)
        if described["version"] != __version__:
            problem = "The engine plan file is not compatible with this version"
            self._logger.log(ILogger.Severity.ERROR, problem)
            return None
        engine = ICudaEngine(onnx, described["profiles"])
        return _unless_it_fails("deserialize_cuda_engine", engine)


class ICudaEngine:
    def __init__(self, onnx: bytes, profiles: list[dict[str, list[list[int]]]]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(onnx, options, providers=providers)
        self._profiles = profiles
        nodes = (*self._session.get_inputs(), *self._session.get_outputs())
        drops = os.environ.get("FAKE_TENSORRT_DROPS_UNUSED") == "1"
        self._names = [node.name for node in nodes if not (drops and 0 in node.shape)]

    @property
    def num_io_tensors(self) -> int:
        return len(self._names)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy
    ) -> IExecutionContext | None:
        assert strategy.name == "USER_MANAGED"
        return _unless_it_fails("create_execution_context", IExecutionContext(self))

    def create_engine_inspector(self) -> EngineInspector | None:
        return _unless_it_fails("create_engine_inspector", EngineInspector())


class EngineInspector:
    def get_engine_information(self, format: LayerInformationFormat) -> str | None:
        assert format.name == "JSON"
        layers = '{"Layers": ["_gemm_mha_v2_0x0123456789abcdef", "another"]}'
        return _unless_it_fails("get_engine_information", layers)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._addresses = {}
        self._shapes = {}
        self._profile = {}
        self._memory_bytes = 0

    def update_device_memory_size_for_shapes(self) -> Size:
        return SCRATCH_BYTES * self._shapes["tokens_BT"][0]

    def set_device_memory(self, memory: Size, size: Size) -> None:
        assert memory
        assert size >= self.update_device_memory_size_for_shapes()
        self._memory_bytes = size

    def set_optimization_profile_async(self, profile_index: int, stream_handle: Size) -> bool:
        if self._set_profile(profile_index, stream_handle):
            return True
        release = tuple(map(int, __version__.split(".")[:2]))
        if release < RAISES_FOR_A_PROFILE:
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError("Error in set optimization profile async.")

    def _set_profile(self, profile_index: int, stream_handle: Size) -> bool:
        assert stream_handle
        if _fails("profile") or profile_index >= len(self._engine._profiles):
            return False
        self._profile = self._engine._profiles[profile_index]
        return True

    def set_input_shape(self, name: str, shape: Dims) -> bool:
        self._shapes[name] = list(shape)
        low, _best, high = self._profile[name]
        return low <= list(shape) <= high

    def set_tensor_address(self, name: str, memory: Size) -> bool:
        assert memory, name
        assert memory % fake_gpu.ALIGNMENT == 0, f"the address of {name} is not aligned"
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: Size) -> bool:
        assert stream_handle
        assert self._memory_bytes
        if _fails("step"):
            return False
        assert set(self._addresses) == set(self._engine._names), "every tensor needs an address"
        stream = fake_gpu.streams[stream_handle]
        if _fails("capture") and stream.recording is not None:
            stream.is_broken = True
            return False
        num_rows = self._shapes["tokens_BT"][0]
        binding = self._bound(num_rows)
        stream.put(lambda: self._engine._session.run_with_iobinding(binding))
        return True

    def _bound(self, num_rows: int) -> ort.IOBinding:
        """All tensors of `num_rows` rows at their addresses; an input without one is never read."""
        session = self._engine._session
        binding = session.io_binding()
        unused = self._addresses["tokens_BT"]
        for node in session.get_inputs():
            place = ("cpu", 0, NUMPY_OF[node.type], [num_rows, *node.shape[1:]])
            binding.bind_input(node.name, *place, self._addresses.get(node.name, unused))
        for node in session.get_outputs():
            place = ("cpu", 0, NUMPY_OF[node.type], [num_rows, *node.shape[1:]])
            binding.bind_output(node.name, *place, self._addresses[node.name])
        return binding
