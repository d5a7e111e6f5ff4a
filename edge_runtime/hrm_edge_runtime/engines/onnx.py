"""The step graph on ONNX Runtime: its execution providers, and an engine with two carries that swap.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary. All state lives in tensors
of `num_slots` rows, the carry on the provider's device. A step over n slots binds the first n rows of one carry as
inputs and of the other as outputs, by their address: on the CPU nothing is copied and nothing allocated. Bindings are
made once for each n; on a device the small inputs are bound at each step, because that is what copies them there. A
provider that lacks a library falls back to the CPU in silence. The CUDA provider ran on an H100 and on nothing else.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines import engine as contract
from hrm_edge_runtime.engines.engine import (
    Engine,
    EngineLostError,
    EngineUnavailableError,
    StepOutput,
)
from hrm_host.board import num_cores

INSTALL_GPU = "install hrm-edge[serve-gpu] in place of hrm-edge[serve] (onnxruntime-gpu), or choose --engine cpu"
DEVICE_ID = 0
_TYPE_NAMES: dict[Any, str] = {np.int32: "tensor(int32)", np.float32: "tensor(float)", np.bool_: "tensor(bool)"}

Arrays = dict[str, NDArray[Any]]
Address = tuple[str, int, Any, list[int], int]
"""Device, its number, type, shape and pointer of some rows, as a binding takes them."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One way to run a graph; `device` is where ONNX Runtime keeps the carry, None for numpy arrays."""

    name: str
    device: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


CPU = Provider(name="CPUExecutionProvider")
# TensorFloat-32 keeps ten bits of a product's factors: no float32 parity survives that over 16 segments.
CUDA = Provider(name="CUDAExecutionProvider", device="cuda", options={"use_tf32": "0"})


def engine_from_bundle(
    bundle: Bundle,
    *,
    precision: str = "fp32",
    num_slots: int,
    num_threads: int | None = None,
    provider: Provider = CPU,
    want_logits: bool = False,
) -> "OnnxEngine":
    """Open a bundle's step graph; raises BundleError where its sizes are not the manifest's."""
    path = bundle.graph_path(precision, device="cpu" if provider is CPU else "any")
    engine = OnnxEngine(path, num_slots=num_slots, num_threads=num_threads, provider=provider, want_logits=want_logits)
    for name, size in engine.sizes.items():
        stated = getattr(bundle.manifest, name)
        if size != stated:
            raise BundleError(f"{path} has {name} {size} where the manifest says {stated}: export the bundle again.")
    return engine


class OnnxEngine(Engine):
    """A step graph on ONNX Runtime; raises BundleError for a file that is no step graph.

    `num_threads` None takes every core this process may use. Without `want_logits` ONNX Runtime need not hand them out.
    `sizes` are the graph's T, E, N, D and V, named as in the manifest. Raises EngineLostError where the provider fails
    while it runs.
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
        self.sizes = {
            axis: size for name in shapes for axis, size in zip(contract.AXES[name], shapes[name], strict=True)
        }
        self.seq_len = self.sizes["seq_len"]
        device, carried = provider.device, {name: (num_slots, *shapes[name]) for name in contract.CARRIES}
        self._on_host = device is None
        wanted = (*contract.ANSWERS, contract.LOGITS) if want_logits else contract.ANSWERS
        self._inputs: Arrays = {
            name: np.zeros((num_slots, *shapes[name]), contract.INPUTS[name]) for name in contract.FED
        }
        self._outputs: Arrays = {name: np.zeros((num_slots, *shapes[name]), contract.OUTPUTS[name]) for name in wanted}
        self._carries = [
            {name: HostRows(shape) if device is None else DeviceRows(shape, device) for name, shape in carried.items()}
            for _parity in range(2)
        ]
        self._current = 0
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T
        self._inputs["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._inputs["fresh_B"][slot] = True

    def retell(self, slot: int, tokens_T: Int32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T

    def move(self, source: int, target: int) -> None:
        for inputs in self._inputs.values():
            inputs[target] = inputs[source]
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
        except Exception as error:  # ONNX Runtime has no common class of its own
            raise EngineLostError(f"ONNX Runtime failed in a segment of {num_active} slots ({error})") from error
        self._current = 1 - self._current
        self._inputs["fresh_B"][:num_active] = False
        return StepOutput(**{name: rows[:num_active] for name, rows in self._outputs.items()})

    def close(self) -> None:
        self._bindings.clear()
        del self._session

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step, for parity; a view or a copy."""
        high, low = (self._carries[self._current][name].read(num_active) for name in contract.CARRIES)
        return high, low

    def _bind(self, num_active: int) -> ort.IOBinding:
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

    def _bind_inputs(self, binding: ort.IOBinding, num_active: int) -> None:
        for name, rows in self._inputs.items():
            binding.bind_input(name, *_address(rows[:num_active]))


class HostRows:
    """`num_slots` rows of one tensor of the carry, in a numpy array; `read` gives a view."""

    def __init__(self, shape: contract.Shape) -> None:
        self.array = np.zeros(shape, np.float32)

    def address(self, num_rows: int) -> Address:
        return _address(self.array[:num_rows])

    def move(self, source: int, target: int) -> None:
        self.array[target] = self.array[source]

    def read(self, num_rows: int) -> NDArray[Any]:
        return self.array[:num_rows]


class DeviceRows:
    """Rows that stay on a device; `read` gives a copy. A move, which is rare, goes whole through the host."""

    def __init__(self, shape: contract.Shape, device: str) -> None:
        self._device = device
        self._shape = shape
        self._value = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32), device, DEVICE_ID)

    def address(self, num_rows: int) -> Address:
        return self._device, DEVICE_ID, np.float32, [num_rows, *self._shape[1:]], self._value.data_ptr()

    def move(self, source: int, target: int) -> None:
        array = self._value.numpy().copy()
        array[target] = array[source]
        self._value.update_inplace(array)

    def read(self, num_rows: int) -> NDArray[Any]:
        return self._value.numpy()[:num_rows]


def _address(rows: NDArray[Any]) -> Address:
    return "cpu", 0, rows.dtype.type, list(rows.shape), rows.ctypes.data


def open_session(path: Path, provider: Provider, num_threads: int | None) -> ort.InferenceSession:
    """Open a graph; refuses one that does not load, and a provider behind which only the CPU would run."""
    if provider.name not in ort.get_available_providers():
        raise EngineUnavailableError(f"this ONNX Runtime has no {provider.name}: {INSTALL_GPU}.")
    if provider is not CPU and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA and cuDNN where pip put them; since 1.21
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; its optimiser warns of each fusion that it leaves undone
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = num_threads or num_cores()
    options.inter_op_num_threads = 1
    # Idle workers would spin and take the cores from the HTTP process (microsoft/onnxruntime pull request 11841).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [(provider.name, provider.options)]
    try:
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime has a class for each kind of failure and no common one of its own
        reason = " ".join(str(error).split())
        raise BundleError(f"{path} does not load as an ONNX graph ({reason}): export the bundle again.") from error
    if session.get_providers()[0] != provider.name:
        raise EngineUnavailableError(f"{provider.name} does not start on this machine: {INSTALL_GPU}.")
    return session


def _row_shapes(session: ort.InferenceSession, path: Path) -> dict[str, tuple[int, ...]]:
    """Each tensor's shape less the batch axis; refuses a graph that is no step graph."""
    shapes: dict[str, list[object]] = {}
    for nodes, types in ((session.get_inputs(), contract.INPUTS), (session.get_outputs(), contract.OUTPUTS)):
        stated = {node.name: node for node in nodes}
        for name, type_name in ((name, _TYPE_NAMES[dtype]) for name, dtype in types.items()):
            if name not in stated or stated[name].type != type_name:
                raise BundleError(f"{path} has no {name} of type {type_name}, so it is no step graph: export it again.")
            shapes[name] = list(stated[name].shape)
    if any(
        [isinstance(size, int) for size in shape] != [False, *(True for _ in contract.AXES[name])]
        for name, shape in shapes.items()
    ):
        raise BundleError(f"{path} must leave the batch axis open and no other ({shapes}): export it again.")
    return {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in shapes.items()}
