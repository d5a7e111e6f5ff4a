"""The step graph on ONNX Runtime: two carries that swap, bound in place, and never an idle row.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary. All state lives in tensors
of `num_slots` rows, the carry on the provider's device. A step over n slots binds the first n rows of one carry as
inputs and of the other as outputs, by their address: on the CPU nothing is copied, nothing allocated. Then the two
change places. The bindings of each n are made once; on a device the small inputs are bound again at each step, because
ONNX Runtime copies them there when they are bound and not when it runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_edge_runtime.bundle import Bundle, BundleError
from hrm_edge_runtime.engines.engine import EngineLostError, Float32, Int32, StepOutput
from hrm_edge_runtime.engines.providers import CPU, Provider, open_session
from hrm_edge_runtime.engines.rows import DeviceRows, HostRows, Rows
from hrm_edge_runtime.engines.step_graph import ANSWERS, CARRIES, INPUTS, LOGITS, OUTPUTS

_TYPE_NAMES: dict[Any, str] = {np.int32: "tensor(int32)", np.float32: "tensor(float)", np.bool_: "tensor(bool)"}

Sizes = dict[str, int]
Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, NDArray[Any]]


class OnnxEngine:
    """A step graph on ONNX Runtime; raises BundleError for a file that is no step graph.

    `num_threads` None takes every core this process may use. With `want_logits` each StepOutput carries `logits_BTV`;
    serving leaves it off, and ONNX Runtime then need not hand it out. `sizes` are the graph's T, E, N, D and V. A
    provider that fails under way raises EngineLostError.
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
        shapes = _shapes_of(self._session, Path(graph_path))
        self.sizes = _sizes_of(shapes)
        self.seq_len = self.sizes["seq_len"]
        self._on_host = provider.device is None
        fed = {name: dtype for name, dtype in INPUTS.items() if name not in CARRIES}
        self._inputs = _allocate(fed, shapes, num_slots)
        self._carries = [_allocate_carry(shapes, num_slots, provider.device) for _ in range(2)]
        wanted = (*ANSWERS, LOGITS) if want_logits else ANSWERS
        self._outputs = _allocate({name: OUTPUTS[name] for name in wanted}, shapes, num_slots)
        self._current = 0
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T
        self._inputs["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._inputs["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for inputs in self._inputs.values():
            inputs[target] = inputs[source]
        for carry in self._carries[self._current].values():
            carry.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        binding = self._binding(num_active)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime has no common class of its own
            raise EngineLostError(f"ONNX Runtime failed in a segment of {num_active} slots ({error})") from error
        self._current = 1 - self._current
        self._inputs["fresh_B"][:num_active] = False
        logits_BTV = self._outputs.get(LOGITS)
        return StepOutput(
            answer_BT=self._outputs["answer_BT"][:num_active],
            halt_margin_B=self._outputs["halt_margin_B"][:num_active],
            q_halt_B=self._outputs["q_halt_B"][:num_active],
            logits_BTV=None if logits_BTV is None else logits_BTV[:num_active],
        )

    def close(self) -> None:
        self._bindings.clear()
        del self._session

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step, for parity; a view or a copy."""
        high, low = (self._carries[self._current][name].read(num_active) for name in CARRIES)
        return high, low

    def _binding(self, num_active: int) -> ort.IOBinding:
        key = (self._current, num_active)
        if key not in self._bindings:
            self._bindings[key] = self._bind(num_active)
        elif not self._on_host:
            self._bind_inputs(self._bindings[key], num_active)
        return self._bindings[key]

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


def engine_from_bundle(
    bundle: Bundle,
    *,
    precision: str = "fp32",
    num_slots: int,
    num_threads: int | None = None,
    provider: Provider = CPU,
    want_logits: bool = False,
) -> OnnxEngine:
    """Open a bundle's step graph; raises BundleError where its sizes are not the manifest's."""
    path = bundle.graph_path(precision, device="cpu" if provider is CPU else "any")
    engine = OnnxEngine(path, num_slots=num_slots, num_threads=num_threads, provider=provider, want_logits=want_logits)
    for name, size in engine.sizes.items():
        stated = getattr(bundle.manifest, name)
        if size != stated:
            raise BundleError(f"{path} has {name} {size} where the manifest says {stated}: export the bundle again.")
    return engine


def _shapes_of(session: ort.InferenceSession, path: Path) -> Shapes:
    """Each tensor's shape less the batch axis."""
    shapes: dict[str, list[object]] = {}
    for nodes, types in ((session.get_inputs(), INPUTS), (session.get_outputs(), OUTPUTS)):
        stated = {node.name: node for node in nodes}
        for name, type_name in ((name, _TYPE_NAMES[dtype]) for name, dtype in types.items()):
            if name not in stated or stated[name].type != type_name:
                raise BundleError(f"{path} has no {name} of type {type_name}, so it is no step graph: export it again.")
            shapes[name] = list(stated[name].shape)
    if any(not _open_in_front_only(shape) for shape in shapes.values()):
        raise BundleError(f"{path} must leave the batch axis open and no other ({shapes}): export it again.")
    return {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in shapes.items()}


def _open_in_front_only(shape: list[object]) -> bool:
    return bool(shape) and not isinstance(shape[0], int) and all(isinstance(size, int) for size in shape[1:])


def _sizes_of(shapes: Shapes) -> Sizes:
    (num_positions, hidden_size), (seq_len, vocab_size) = shapes["z_high_BND"], shapes[LOGITS]
    return {
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "num_positions": num_positions,
        "hidden_size": hidden_size,
        "puzzle_vector_size": shapes["puzzle_vector_BE"][0],
    }


def _allocate(types: Mapping[str, Any], shapes: Shapes, num_slots: int) -> Arrays:
    return {name: np.zeros((num_slots, *shapes[name]), dtype) for name, dtype in types.items()}


def _allocate_carry(shapes: Shapes, num_slots: int, device: str | None) -> dict[str, Rows]:
    shape_of = {name: (num_slots, *shapes[name]) for name in CARRIES}
    if device is None:
        return {name: HostRows(shape, np.float32) for name, shape in shape_of.items()}
    return {name: DeviceRows(shape, np.float32, device) for name, shape in shape_of.items()}


def _address(rows: NDArray[Any]) -> tuple[str, int, Any, list[int], int]:
    return "cpu", 0, rows.dtype.type, list(rows.shape), rows.ctypes.data
