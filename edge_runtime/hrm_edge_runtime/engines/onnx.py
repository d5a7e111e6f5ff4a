"""The step graph on ONNX Runtime: execution providers, and an engine with two carries that swap.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary.

All state is in tensors of `num_slots` rows, the carry on the provider's device. A step over n slots
binds the first n rows of one carry as inputs and of the other as outputs, by address: on the CPU it
copies and allocates nothing. Bindings are made once per n. On a device the small inputs are bound
at each step, because binding copies them there.

A provider that lacks a library falls back to the CPU without an error. The CUDA provider ran on an
H100 only.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime import InferenceSession, IOBinding  # absent if pip removed a part of the package

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines import engine as contract
from hrm_edge_runtime.engines.engine import (
    Arrays,
    Engine,
    EngineLostError,
    EngineUnavailableError,
    Float32,
    Int32,
    Shape,
    StepOutput,
)
from hrm_host import system
from hrm_host.machine import num_cores
from hrm_host.reading import counted

INSTALL_GPU = (
    "install hrm-edge[serve-gpu] in place of hrm-edge[serve] (onnxruntime-gpu), "
    "or choose --engine cpu"
)
HOST = "cpu"
DEVICE_ID = 0
_TYPE_NAMES: dict[Any, str] = {
    np.int32: "tensor(int32)",
    np.float32: "tensor(float)",
    np.bool_: "tensor(bool)",
}

Address = tuple[str, int, Any, list[int], int]
"""Device, its number, type, shape and pointer of some rows, as a binding takes them."""


class Provider(NamedTuple):
    """One way to run a graph; the carry is kept on `device`, or in numpy arrays if that is None."""

    name: str
    options: dict[str, Any]
    device: str | None = None


CPU = Provider(name="CPUExecutionProvider", options={})
# TensorFloat-32 keeps ten bits of each factor of a product, which breaks float32 parity over 16
# segments.
CUDA = Provider(name="CUDAExecutionProvider", options={"use_tf32": "0"}, device="cuda")


class CarryRows:
    """`num_slots` rows of one tensor of the carry, on the host or on a device.

    On the host `_value` shares the memory of `_array`. On a device a move, which is rare, copies
    all rows.
    """

    def __init__(self, shape: Shape, device: str | None) -> None:
        self._is_on_host = device is None
        self._device = device or HOST
        self._array = np.zeros(shape, np.float32)
        self._value = ort.OrtValue.ortvalue_from_numpy(self._array, self._device, DEVICE_ID)

    def address(self, num_rows: int) -> Address:
        shape = [num_rows, *self._array.shape[1:]]
        return self._device, DEVICE_ID, np.float32, shape, self._value.data_ptr()

    def move(self, source: int, target: int) -> None:
        array = self.array()
        array[target] = array[source]
        if not self._is_on_host:
            self._value.update_inplace(array)

    def array(self) -> Float32:
        """The rows on the host, or a copy of those on a device."""
        if self._is_on_host:
            return self._array
        return self._value.numpy().copy()


def _address(rows: NDArray[Any]) -> Address:
    return HOST, DEVICE_ID, rows.dtype.type, list(rows.shape), rows.ctypes.data


def engine_from_bundle(
    bundle: Bundle,
    *,
    precision: str = "fp32",
    num_slots: int,
    num_threads: int | None = None,
    provider: Provider = CPU,
    want_logits: bool = False,
) -> "OnnxEngine":
    """Open a bundle's step graph; raises BundleError if its sizes differ from the manifest's."""
    device = "cpu" if provider is CPU else "any"
    path = bundle.graph_path(precision, device=device)
    engine = OnnxEngine(
        path,
        num_slots=num_slots,
        num_threads=num_threads,
        provider=provider,
        want_logits=want_logits,
    )
    for name, size in engine.sizes.items():
        expected = getattr(bundle.manifest, name)
        if size != expected:
            raise BundleError(
                f"{path} has {name} {size}, but the manifest says {expected}: "
                "export the bundle again."
            )
    return engine


class HostEngine(Engine):
    """Keeps inputs of the slots in arrays of the host."""

    _inputs: Arrays

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T
        self._inputs["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._inputs["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in self._inputs.values():
            rows[target] = rows[source]


class ArrayEngine(HostEngine):
    """Keeps every input of the slots in an array; `run_graph` computes the outputs of a segment."""

    def __init__(self, inputs: Arrays, run_graph: Callable[[Arrays], Arrays]) -> None:
        self.num_slots, self.seq_len = inputs["tokens_BT"].shape
        self._inputs = inputs
        self._run_graph = run_graph

    def step(self, num_active: int) -> StepOutput:
        inputs = {name: rows[:num_active] for name, rows in self._inputs.items()}
        outputs = self._run_graph(inputs)
        for name in contract.CARRIES:
            self._inputs[name][:num_active] = outputs[f"{name}_next"]
        self._inputs["fresh_B"][:num_active] = False
        return StepOutput(*(outputs[name] for name in contract.outputs_read(want_logits=True)))

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        high_BND, low_BND = (self._inputs[name][:num_active] for name in contract.CARRIES)
        return high_BND, low_BND


class OnnxEngine(HostEngine):
    """A step graph on ONNX Runtime; raises BundleError if the file is not a step graph.

    `num_threads` defaults to every core this process may use. `sizes` holds the graph's T, E, N, D
    and V under their names in the manifest. A step raises EngineLostError if the provider fails.
    """

    def __init__(
        self,
        graph_path: Path | str,
        *,
        num_slots: int,
        num_threads: int | None = None,
        provider: Provider = CPU,
        want_logits: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self._session = open_session(Path(graph_path), provider, num_threads)
        shapes = _row_shapes(self._session, Path(graph_path))
        self.sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            for axis, size in zip(contract.AXES[name], shape, strict=True):
                if self.sizes.setdefault(axis, size) != size:
                    found = f"{graph_path} has {axis} {self.sizes[axis]}, but {size} in {name}"
                    raise BundleError(f"{found}: export the bundle again.")
        self.seq_len = self.sizes["seq_len"]
        self._on_host = provider.device is None
        self._inputs: Arrays = {}
        for name in contract.FED:
            self._inputs[name] = np.zeros((num_slots, *shapes[name]), contract.INPUTS[name])
        self._outputs: Arrays = {}
        for name in contract.outputs_read(want_logits):
            self._outputs[name] = np.zeros((num_slots, *shapes[name]), contract.OUTPUTS[name])
        self._carries: list[dict[str, CarryRows]] = [{}, {}]
        for carry in self._carries:
            for name in contract.CARRIES:
                carry[name] = CarryRows((num_slots, *shapes[name]), provider.device)
        self._current = 0
        """The carry that the next segment starts from."""
        self._bindings: dict[tuple[int, int], IOBinding] = {}

    def replace_tokens(self, slot: int, tokens_T: Int32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        for carry in self._carries[self._current].values():
            carry.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        key = (self._current, num_active)
        if key not in self._bindings:
            self._bindings[key] = self._bind(num_active)
        elif not self._on_host:
            self._bind_inputs(self._bindings[key], num_active)
        try:
            self._session.run_with_iobinding(self._bindings[key])
        except Exception as error:  # ONNX Runtime's errors lack a common class of their own
            raise EngineLostError(
                f"ONNX Runtime failed in a segment of {counted(num_active, 'slot')} ({error})"
            ) from error
        self._current = 1 - self._current
        self._inputs["fresh_B"][:num_active] = False
        outputs: Arrays = {}
        for name, rows in self._outputs.items():
            outputs[name] = rows[:num_active]
        return StepOutput(**outputs)

    def close(self) -> None:
        self._bindings.clear()
        del self._session

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step, for parity; a view or a copy."""
        carry = self._carries[self._current]
        high_BND = carry["z_high_BND"].array()
        low_BND = carry["z_low_BND"].array()
        return high_BND[:num_active], low_BND[:num_active]

    def _bind(self, num_active: int) -> IOBinding:
        assert 0 < num_active <= self.num_slots, f"{num_active} active slots of {self.num_slots}"
        binding = self._session.io_binding()
        self._bind_inputs(binding, num_active)
        for name, carry in self._carries[self._current].items():
            binding.bind_input(name, *carry.address(num_active))
        for name, carry in self._carries[1 - self._current].items():
            binding.bind_output(f"{name}_next", *carry.address(num_active))
        for name, rows in self._outputs.items():
            binding.bind_output(name, *_address(rows[:num_active]))
        return binding

    def _bind_inputs(self, binding: IOBinding, num_active: int) -> None:
        for name, rows in self._inputs.items():
            binding.bind_input(name, *_address(rows[:num_active]))


def open_session(path: Path, provider: Provider, num_threads: int | None) -> InferenceSession:
    """Open a graph.

    Raises BundleError if it does not load, and EngineUnavailableError if the provider does not
    start.
    """
    if provider.name not in ort.get_available_providers():
        raise EngineUnavailableError(f"this ONNX Runtime lacks {provider.name}: {INSTALL_GPU}.")
    if provider is not CPU and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # finds CUDA and cuDNN where pip puts them; since 1.21
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; the optimizer warns of each fusion that it skips
    options.intra_op_num_threads = num_threads or num_cores()
    # Idle workers would spin and take cores from the HTTP process (microsoft/onnxruntime pull
    # request 11841).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [(provider.name, provider.options)]
    try:
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors lack a common class of their own
        reason = " ".join(str(error).split())
        remedy = system.remedy_at_limit(error)
        if remedy is not None:
            raise EngineUnavailableError(f"{path} does not open ({reason}): {remedy}.") from error
        raise BundleError(
            f"{path} does not load as an ONNX graph ({reason}): export the bundle again."
        ) from error
    if session.get_providers()[0] != provider.name:
        raise EngineUnavailableError(
            f"{provider.name} does not start on this machine: {INSTALL_GPU}."
        )
    return session


def _row_shapes(session: InferenceSession, path: Path) -> dict[str, Shape]:
    """Each tensor's shape without the batch axis; raises BundleError for any other graph."""
    shapes = _shapes_of(session.get_inputs(), contract.INPUTS, path)
    shapes |= _shapes_of(session.get_outputs(), contract.OUTPUTS, path)
    row_shapes: dict[str, Shape] = {}
    for name, (batch, *sizes) in shapes.items():
        fixed = tuple(size for size in sizes if isinstance(size, int))
        num_axes = len(contract.AXES[name])
        if isinstance(batch, int) or len(sizes) != num_axes or len(fixed) != num_axes:
            raise BundleError(
                f"{path} must have an open batch axis and no other ({shapes}): export it again."
            )
        row_shapes[name] = fixed
    return row_shapes


def _shapes_of(nodes: Any, types: Mapping[str, Any], path: Path) -> dict[str, list[object]]:
    """The shapes of a graph's inputs or outputs, which must have these names and types."""
    found = {node.name: node for node in nodes}
    shapes: dict[str, list[object]] = {}
    for name, dtype in types.items():
        type_name = _TYPE_NAMES[dtype]
        if name not in found or found[name].type != type_name:
            raise BundleError(
                f"{path} is not a step graph, it lacks {name} of type {type_name}: export it again."
            )
        shapes[name] = list(found[name].shape)
    return shapes
