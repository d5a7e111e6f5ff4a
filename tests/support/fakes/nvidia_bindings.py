"""NVIDIA's Python bindings of TensorRT over the stand-in; conversions, lifetimes and GIL are real.

FAKE_TENSORRT_BINDINGS names a folder with the wheel and three libraries from `below.c`
(`make check-trt`). The bindings call C++ objects through tables of functions. `SLOTS` has the
functions that the program reaches; their parameters are in the annotations of the stand-in. Any
other function ends the process, as does an error in the stand-in.

A C++ object is a pointer to a table with its two destructors, and a pointer to an inner object,
whose table has two destructors and then the methods. The parser and its errors are their own inner
objects; the parser's destructors come after the methods in use.
"""

import ctypes
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["FAKE_TENSORRT_BINDINGS"])
LIBRARIES = ("libnvinfer.so", "libnvonnxparser.so", "libnvinfer_plugin.so")
SOME_CLASS = "_ZTISt9exception"  # one that the bindings do not know, so they take the declared one
BAD_POINTER = 0x228  # what the runtime is on a machine where CUDA does not start
CREATED = ("Builder", "Runtime", "OnnxParser")  # by the number that `below.c` passes
NUM_SLOTS = 100  # more than any table has
WORD = 8  # bytes
INNER = 2 * WORD  # offset of the inner object
INT32_MASK = 0xFFFFFFFF
OWN_TABLE = ("OnnxParser", "ParserError")
NOT_OWNED = ("IOptimizationProfile", "ParserError")  # by Python; they end with what made them
NEED_THEIR_MAKER = ("ICudaEngine", "EngineInspector", "IExecutionContext")
VERSIONED = 4  # first slot of an interface that Python implements, after those of every interface
LOG = (0, VERSIONED)  # of TensorRT 10 and 11, where a logger is such an interface too

# Places in the tables of TensorRT 10 and 11; "=" sets an attribute.
SLOTS = {
    "Builder": {
        "create_builder_config": (5, 3),
        "create_network": (6, 4),
        "create_optimization_profile": (7, 5),
        "build_serialized_network": (12, 9),
    },
    "IBuilderConfig": {
        "clear_flag": (8, 6),
        "add_optimization_profile": (23, 21),
        "profiling_verbosity=": (25, 23),
        "create_timing_cache": (38, 27),
        "set_timing_cache": (39, 28),
        "get_timing_cache": (40, 29),
        "set_memory_pool_limit": (41, 30),
        "builder_optimization_level=": (45, 34),
        "max_aux_streams=": (52, 41),
        "progress_monitor=": (54, 43),
    },
    "IOptimizationProfile": {"_set_dimensions": (0, 0)},
    "ITimingCache": {"serialize": (0, 0)},
    "IHostMemory": {"_content": (0, 0), "_size": (1, 1), "_item_type": (2, 2)},
    "OnnxParser": {
        "parse_from_file": (1, 1),
        "num_errors": (5, 3),
        "get_error": (6, 4),
        "destroy": (8, 6),
        "delete": (9, 7),
    },
    "ParserError": {"desc": (1, 1), "node_name": (6, 6), "node_operator": (7, 7)},
    "Runtime": {"deserialize_cuda_engine": (1, 1)},
    "ICudaEngine": {
        "create_execution_context": (3, 3),
        "num_optimization_profiles": (8, 6),
        "create_engine_inspector": (16, 12),
        "num_io_tensors": (28, 24),
        "get_tensor_name": (29, 25),
    },
    "EngineInspector": {"get_engine_information": (4, 4)},
    "IExecutionContext": {
        "_set_profile": (15, 14),
        "set_input_shape": (19, 18),
        "set_tensor_address": (22, 21),
        "execute_async_v3": (35, 34),
        "update_device_memory_size_for_shapes": (46, 45),
        "set_device_memory": (47, 46),
    },
}


class Object:
    """A C++ object for one of the stand-in."""

    def __init__(self, real: Any, maker: int, tables: tuple[int, int]) -> None:
        self.real = real
        self.maker = maker
        self.kept = []  # what the bindings have pointers to
        self._words = (c_void_p * 3)()
        self.address = ctypes.addressof(self._words)
        public, methods = tables
        self._words[:] = (public, self.address + INNER, methods)


live = {}
_tables = {}
_kept = []  # tables and callbacks, which ctypes needs to stay alive


def module() -> ModuleType:
    """NVIDIA's module, over the stand-in as it is imported now."""
    found = sys.modules.get("tensorrt_bindings")
    if found is None:
        found = _load()
    _stand_in().__version__ = found.__version__
    return found


def _load() -> ModuleType:
    for name in LIBRARIES:
        (file,) = FOLDER.glob(f"{name}.*")
        library = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        c_void_p.in_dll(library, "create").value = _pointer_to(_create)
    sys.path.append(str(FOLDER))
    return importlib.import_module("tensorrt_bindings")


def _stand_in() -> Any:
    return importlib.import_module("stand_in_tensorrt")


def _is_11() -> bool:
    return module().__version__.startswith("11.")


def _create(kind: int, network: int, logger: int) -> int:
    """Make one of CREATED; a parser needs a network."""
    arguments = [live[network].real] if network else []
    name = CREATED[kind & INT32_MASK]
    if name == "Runtime" and os.environ.get("FAKE_TENSORRT_FAILS") == "bad pointer":
        return BAD_POINTER
    try:
        real = getattr(_stand_in(), name)(*arguments, Implemented(logger))
    except TypeError:  # of a null pointer
        return 0
    return _address_of(real, maker=0)


def _address_of(real: Any, maker: int) -> int:
    for known in live.values():
        if known.real is real:
            return known.address
    made = Object(real, maker, _tables_of(type(real).__name__))
    live[made.address] = made
    return made.address


def _tables_of(kind: str) -> tuple[int, int]:
    """The addresses of the public table and of the one with the methods."""
    if kind not in _tables:
        destructors = [_pointer_to(_destroy)] * 2
        if kind in OWN_TABLE:
            methods = _table(_methods(kind, offset=0))
            _tables[kind] = (methods, methods)
        else:
            methods = _table(destructors + _methods(kind, offset=INNER))
            _tables[kind] = (_table(destructors), methods)
    return _tables[kind]


def _table(functions: list[int]) -> int:
    """The address of a table, which has its distance from the object and a class before it."""
    some_class = ctypes.addressof(c_void_p.in_dll(ctypes.CDLL("libstdc++.so.6"), SOME_CLASS))
    words = (c_void_p * (2 + len(functions)))(0, some_class, *functions)
    _kept.append(words)
    return ctypes.addressof(words) + 2 * WORD


def _methods(kind: str, offset: int) -> list[int]:
    functions = [_pointer_to(_missing(kind, slot)) for slot in range(NUM_SLOTS)]
    for name, slots in SLOTS.get(kind, {}).items():
        function = _destroy
        if name not in ("destroy", "delete"):
            function = _method(kind, name, offset)
        functions[slots[_is_11()]] = _pointer_to(function)
    return functions


def _pointer_to(function: Callable[..., int]) -> int:
    """A C function whose parameters and result are words."""

    def guarded(*words: int) -> int:
        try:
            return function(*words)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os.abort()

    num_words = len(inspect.signature(function).parameters)
    callback = ctypes.CFUNCTYPE(c_int64, *[c_int64] * num_words)(guarded)
    _kept.append(callback)
    return ctypes.cast(callback, c_void_p).value or 0


def _missing(kind: str, slot: int) -> Callable[[], int]:
    def called() -> int:
        raise NotImplementedError(f"the bindings call function {slot} of {kind}")

    return called


def _destroy(address: int) -> int:
    del live[address]
    for other in list(live.values()):
        if other.maker == address:
            kind = type(other.real).__name__
            assert kind not in NEED_THEIR_MAKER, f"{kind} is still there, but not what made it"
            if kind in NOT_OWNED:
                del live[other.address]
    return 0


def _method(kind: str, name: str, offset: int) -> Callable[..., int]:
    """A function of all words that a method may have; more than it has are never read."""
    annotations = _annotations(kind, name)

    def call(inner: int, one: int, two: int, three: int) -> int:
        this = live[inner - offset]
        words = [one, two, three]
        arguments = [_argument(annotation, words) for annotation in annotations]
        if name.endswith("="):
            setattr(this.real, name[:-1], *arguments)
            return True
        result = getattr(this.real, name)
        if callable(result):
            result = result(*arguments)
        return _word(this, result)

    return call


def _annotations(kind: str, name: str) -> list[str]:
    owner = getattr(_stand_in(), kind)
    if name.endswith("="):
        return [owner.__annotations__[name[:-1]].split(" ")[0]]
    member = getattr(owner, name, None)
    if not inspect.isfunction(member):
        return []
    _self, *parameters = inspect.signature(member).parameters.values()
    return [parameter.annotation for parameter in parameters]


def _argument(annotation: str, words: list[int]) -> Any:
    """The next argument of a method, from one word or two."""
    word = words.pop(0)
    if annotation == "bytes":
        return ctypes.string_at(word, words.pop(0)) if word else b""
    if annotation == "Dims":
        num_sizes = c_int32.from_address(word).value
        return tuple((c_int64 * num_sizes).from_address(word + WORD))
    simple = {
        "int": lambda: c_int32(word).value,
        "bool": lambda: c_bool(word & 1).value,
        "Size": lambda: word,
        "str": lambda: ctypes.string_at(word).decode(),
        "IProgressMonitor": lambda: Implemented(word),
    }
    if annotation in simple:
        return simple[annotation]()
    if word in live:
        return live[word].real
    return getattr(module(), annotation)(word & INT32_MASK)


def _word(this: Object, result: Any) -> int:
    """A result as a word; texts and objects become pointers."""
    if result is None:
        return 0
    if isinstance(result, int):
        return result
    if isinstance(result, str):
        result = result.encode()
    if isinstance(result, bytes):
        content = ctypes.create_string_buffer(result)
        this.kept.append(content)
        return ctypes.addressof(content)
    return _address_of(result, this.address)


class Implemented:
    """A logger or a progress monitor of the program, through its C++ object."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def _call(self, slot: int, *arguments: bytes | int | None) -> int:
        kinds = [c_int32 if isinstance(one, int) else c_char_p for one in arguments]
        table = c_int64.from_address(self._pointer).value
        function = c_int64.from_address(table + slot * WORD).value
        return ctypes.CFUNCTYPE(c_bool, c_void_p, *kinds)(function)(self._pointer, *arguments)

    def log(self, severity: int, msg: str) -> None:
        self._call(LOG[_is_11()], int(severity), msg.encode())

    def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
        assert parent is None
        self._call(VERSIONED, name.encode(), None, num_steps)

    def step_complete(self, name: str, step: int) -> int:
        return self._call(VERSIONED + 1, name.encode(), step)

    def phase_finish(self, name: str) -> None:
        self._call(VERSIONED + 2, name.encode())
