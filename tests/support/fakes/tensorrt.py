"""A stand-in for TensorRT's Python module: exactly the names of one version, over ONNX Runtime.

The lists in `tensorrt_api/` were taken from NVIDIA's own bindings. Every name that the program uses
is looked up in the list of the version in FAKE_TENSORRT_VERSION first, so a name that this version
lacks fails as it would on the device. A name that the stand-in does not play fails too. Tensor
addresses are real addresses: a segment binds them to ONNX Runtime (`segments`), so what the engine
around it computes is right or wrong as a whole. With FAKE_TENSORRT_PROVIDER=CUDAExecutionProvider
it runs on a card under the real driver. It cannot show TensorRT's own numbers, times and memory,
nor what the driver does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import fake_gpu
import segments

__version__ = os.environ.get("FAKE_TENSORRT_VERSION", "10.3.0")
LISTS = Path(__file__).parents[1] / "tensorrt_api"
PROVIDER = os.environ.get("FAKE_TENSORRT_PROVIDER", segments.CPU)
SCRATCH_BYTES = 4096


def _names(version: str) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in (LISTS / f"{version}.txt").read_text(encoding="ascii").splitlines()[1:]:
        name, _, members = line.partition(":")
        names[name] = members.split()
    return names


NAMES = _names(__version__)


class Guard:
    """Shows an object under a TensorRT class's name, with that class's members and no others."""

    def __init__(self, kind: str, player: object) -> None:
        assert kind in NAMES, f"TensorRT {__version__} has no class {kind}"
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_player", player)

    def _look_up(self, name: str) -> None:
        if name not in NAMES[self._kind]:
            raise AttributeError(f"TensorRT {__version__}: {self._kind} has no {name}")

    def __getattr__(self, name: str) -> Any:
        self._look_up(name)
        return getattr(self._player, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._look_up(name)
        assert hasattr(self._player, name), f"the stand-in does not play {self._kind}.{name}"
        setattr(self._player, name, value)

    def __bytes__(self) -> bytes:
        return bytes(self._player)  # type: ignore[call-overload]


def _enum(name: str) -> type[IntEnum]:
    members = [member for member in NAMES[name] if member[0].isupper()]
    return IntEnum(name, members, start=0)


BuilderFlag = _enum("BuilderFlag")
ExecutionContextAllocationStrategy = _enum("ExecutionContextAllocationStrategy")
LayerInformationFormat = _enum("LayerInformationFormat")
MemoryPoolType = _enum("MemoryPoolType")
NetworkDefinitionCreationFlag = _enum("NetworkDefinitionCreationFlag")
ProfilingVerbosity = _enum("ProfilingVerbosity")


class ILogger:
    """Base class; a program's own may define only the public names that TensorRT calls."""

    Severity = _enum("ILogger.Severity")

    def __init_subclass__(cls) -> None:
        _check_overrides(cls, "ILogger")


class IProgressMonitor:
    def __init_subclass__(cls) -> None:
        _check_overrides(cls, "IProgressMonitor")


def _check_overrides(kind: type, name: str) -> None:
    own = {member for member in vars(kind) if not member.startswith("_")}
    unknown = own - set(NAMES[name])
    assert not unknown, f"TensorRT {__version__}: {name} has no {unknown}"


def _start(what: str, logger: ILogger) -> None:
    """Fail as pybind11 does when TensorRT's factory returns a null pointer."""
    if _fails(what):
        logger.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")


def Builder(logger: ILogger) -> Guard:
    _start("builder", logger)
    return Guard("Builder", _Builder(logger))


def OnnxParser(network: Guard, logger: ILogger) -> Guard:
    assert logger is None or isinstance(logger, ILogger)
    return Guard("OnnxParser", _Parser(network._player))


def Runtime(logger: ILogger) -> Guard:
    _start("runtime", logger)
    return Guard("Runtime", _Runtime(logger))


class _Builder:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Guard:
        strongly = 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        assert flags == strongly, "only strongly typed networks exist in every version"
        return Guard("INetworkDefinition", _Network())

    def create_builder_config(self) -> Guard:
        return Guard("IBuilderConfig", _Config(self.logger))

    def create_optimization_profile(self) -> Guard:
        return Guard("IOptimizationProfile", _Profile())

    def build_serialized_network(self, network: Guard, config: Guard) -> Guard | None:
        return _build(network._player, config._player, self.logger)


class _Network:
    onnx = b""
    name = ""


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[list[int]]] = {}

    def set_shape(self, name: str, low: Any, best: Any, high: Any) -> None:
        if not tuple(low) <= tuple(best) <= tuple(high) or min(low) < 0:
            raise RuntimeError("Shape provided for min is inconsistent with other shapes.")
        self.shapes[name] = [list(low), list(high)]


class _Config:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger
        self.builder_optimization_level = 3
        self.profiling_verbosity = None
        self.max_aux_streams = -1
        self.progress_monitor: Any = None
        self.profiles: list[dict[str, list[list[int]]]] = []
        self.flags = {BuilderFlag.TF32}
        self.limits: dict[Any, int] = {}
        self.timing: Guard | None = None

    def set_memory_pool_limit(self, pool: Any, num_bytes: int) -> None:
        self.limits[pool] = num_bytes

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def add_optimization_profile(self, profile: Guard) -> int:
        self.profiles.append(profile._player.shapes)
        return len(self.profiles) - 1

    def create_timing_cache(self, kept: bytes) -> Guard | None:
        if _fails("timing cache"):
            self.logger.log(ILogger.Severity.ERROR, "Error Code 2: no timing cache")
            return None
        return Guard("ITimingCache", _TimingCache(kept))

    def set_timing_cache(self, cache: Guard, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache._player.timings.startswith(b"another"):
            return False
        self.timing = cache
        return True

    def get_timing_cache(self) -> Guard | None:
        return self.timing


class _TimingCache:
    def __init__(self, kept: bytes) -> None:
        self.timings = kept

    def serialize(self) -> bytes:
        return self.timings + b"timed "


class _Parser:
    def __init__(self, network: _Network) -> None:
        self._network = network
        self.errors: list[Guard] = []

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def parse_from_file(self, path: str) -> bool:
        file = Path(path)
        self._network.onnx = file.read_bytes()
        self._network.name = file.name
        if b"DynamicQuantizeLinear" in self._network.onnx:
            self.errors.append(Guard("ParserError", _ParserError()))
        return not self.errors

    def get_error(self, index: int) -> Guard:
        return self.errors[index]


class _ParserError:
    def desc(self) -> str:
        return "no importer for this operator"

    def node_name(self) -> str:
        return "a_node"

    def node_operator(self) -> str:
        return "DynamicQuantizeLinear"


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.nbytes = len(content)

    def __bytes__(self) -> bytes:
        return self.content


def _fails(what: str) -> bool:
    return os.environ.get("FAKE_TENSORRT_FAILS") == what


def _build(network: _Network, config: _Config, logger: ILogger) -> Guard | None:
    assert BuilderFlag.TF32 not in config.flags
    monitor, phase = config.progress_monitor, "Building Engine"
    monitor.phase_start(phase, None, len(config.profiles))
    for step in range(len(config.profiles)):
        if not monitor.step_complete(phase, step):
            return None
    monitor.phase_finish(phase)
    print(os.environ.get("FAKE_TENSORRT_PRINTS", ""), end="")
    gate = os.environ.get("FAKE_TENSORRT_WAITS_FOR")
    if network.name not in os.environ.get("FAKE_TENSORRT_WAITS_IN", network.name):
        gate = None
    while gate and not Path(gate).exists():
        time.sleep(0.01)
    if _fails(f"crash {network.name}"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if _fails(f"kill {network.name}"):
        print("[TRT] timing a kernel of", network.name, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if _fails("build") or _fails(network.name):
        logger.log(ILogger.Severity.ERROR, "Error Code 2: OutOfMemory\n(no further information)")
        return None
    limits = {pool.name: limit for pool, limit in config.limits.items()}
    settings = {"limits": limits, "aux_streams": config.max_aux_streams}
    head = json.dumps({"version": __version__, "profiles": config.profiles, **settings})
    return Guard("IHostMemory", _Bytes(head.encode() + b"\n" + network.onnx))


class _Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, plan: bytes) -> Guard | None:
        if _fails("bad pointer"):  # what NVIDIA's runtime returns if CUDA does not start
            os.kill(os.getpid(), signal.SIGSEGV)
        head, separator, onnx = plan.partition(b"\n")
        if not separator:
            self._logger.log(ILogger.Severity.ERROR, "the plan is not one of TensorRT")
            return None
        described = json.loads(head)
        if described["version"] != __version__:
            problem = "The engine plan file is not compatible with this version"
            self._logger.log(ILogger.Severity.ERROR, problem)
            return None
        return Guard("ICudaEngine", _Engine(onnx, described["profiles"]))


class _Engine:
    def __init__(self, onnx: bytes, profiles: list[dict[str, list[list[int]]]]) -> None:
        self.onnx = onnx
        self.session = segments.open_session(onnx, segments.CPU)
        self.profiles = profiles
        self.device_memory_size_v2 = SCRATCH_BYTES
        nodes = (*self.session.get_inputs(), *self.session.get_outputs())
        drops = os.environ.get("FAKE_TENSORRT_DROPS_UNUSED") == "1"
        self._names = [node.name for node in nodes if not (drops and 0 in node.shape)]
        self.digest = hashlib.sha256(onnx).hexdigest()

    @property
    def num_io_tensors(self) -> int:
        return len(self._names)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def create_execution_context(self, strategy: Any) -> Guard:
        assert strategy == ExecutionContextAllocationStrategy.USER_MANAGED
        return Guard("IExecutionContext", _Context(self))

    def create_engine_inspector(self) -> Guard:
        return Guard("EngineInspector", _Inspector())


class _Inspector:
    def get_engine_information(self, kind: Any) -> str:
        assert kind == LayerInformationFormat.JSON
        return '{"Layers": ["_gemm_mha_v2_0x0123456789abcdef", "another"]}'


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, list[int]] = {}
        self._profile: dict[str, list[list[int]]] = {}
        self._has_memory = False
        self._segments: segments.OnHost | segments.OnCard | None = None

    def update_device_memory_size_for_shapes(self) -> int:
        inputs = set(self._profile) & set(self._engine._names)
        assert set(self._shapes) == inputs, "every input needs a shape"
        return SCRATCH_BYTES

    def set_device_memory(self, address: int, num_bytes: int) -> None:
        assert address
        assert self._shapes, "memory is given after the profile and the shapes"
        assert num_bytes >= SCRATCH_BYTES
        self._has_memory = True

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        assert stream
        if _fails("profile"):  # the C++ API returns false, the binding raises
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = self._engine.profiles[profile]
        if PROVIDER == segments.CUDA:
            self._segments = segments.OnCard(self._engine.onnx, stream)
        else:
            self._segments = segments.OnHost(self._engine.session, stream)
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        self._shapes[name] = list(shape)
        low, high = self._profile[name]
        return low <= list(shape) <= high

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address, name
        assert address % fake_gpu.ALIGNMENT == 0, f"the address of {name} is not aligned"
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream
        assert self._has_memory
        assert self._segments is not None
        if _fails("step"):
            return False
        assert set(self._addresses) == set(self._engine._names), "every tensor needs an address"
        num_rows = self._shapes["tokens_BT"][0]
        return self._segments.enqueue(num_rows, dict(self._addresses))
