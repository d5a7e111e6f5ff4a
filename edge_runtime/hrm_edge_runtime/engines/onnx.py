"""The step graph on ONNX Runtime: two carries that swap, bound in place, and never an idle row.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary. All state lives in numpy
arrays of `num_slots` rows. A step over n slots binds the first n rows of one carry as inputs and of the other as
outputs, by their address: nothing is copied, nothing allocated. Then the two change places. The bindings of each n are
made once.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_edge_runtime.bundle import Bundle, BundleError
from hrm_edge_runtime.engines.engine import Float32, Int32, StepOutput

CARRIES = ("z_high_BND", "z_low_BND")
LOGITS = "logits_BTV"
ANSWERS = ("answer_BT", "halt_margin_B", "q_halt_B")
INPUT_TYPES = {
    "tokens_BT": "tensor(int32)",
    "puzzle_vector_BE": "tensor(float)",
    "fresh_B": "tensor(bool)",
    "z_high_BND": "tensor(float)",
    "z_low_BND": "tensor(float)",
}
OUTPUT_TYPES = {
    "answer_BT": "tensor(int32)",
    "halt_margin_B": "tensor(float)",
    "q_halt_B": "tensor(float)",
    "logits_BTV": "tensor(float)",
    "z_high_BND_next": "tensor(float)",
    "z_low_BND_next": "tensor(float)",
}
_NUMPY_OF: dict[str, Any] = {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}

Sizes = dict[str, int]
Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, NDArray[Any]]


class OnnxEngine:
    """A step graph on ONNX Runtime; raises BundleError for a file that is no step graph.

    `num_threads` None takes every core this process may use. With `want_logits` each StepOutput carries `logits_BTV`;
    serving leaves it off, and ONNX Runtime then need not hand it out. `sizes` are the graph's T, E, N, D and V.
    """

    def __init__(
        self,
        graph_path: Path | str,
        *,
        num_slots: int,
        num_threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        want_logits: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self._session = _open_session(Path(graph_path), num_threads or _num_cores(), providers)
        shapes = _shapes_of(self._session, Path(graph_path))
        self.sizes = _sizes_of(shapes)
        self.seq_len = self.sizes["seq_len"]
        self._inputs = _allocate(INPUT_TYPES, shapes, num_slots, leave_out=CARRIES)
        carries = {name: INPUT_TYPES[name] for name in CARRIES}
        self._carries = [_allocate(carries, shapes, num_slots) for _ in range(2)]
        wanted = (*ANSWERS, LOGITS) if want_logits else ANSWERS
        self._outputs = _allocate({name: OUTPUT_TYPES[name] for name in wanted}, shapes, num_slots)
        self._current = 0
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T
        self._inputs["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._inputs["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in (*self._inputs.values(), *self._carries[self._current].values()):
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        self._session.run_with_iobinding(self._binding(num_active))
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

    def _binding(self, num_active: int) -> ort.IOBinding:
        key = (self._current, num_active)
        if key not in self._bindings:
            self._bindings[key] = self._bind(num_active)
        return self._bindings[key]

    def _bind(self, num_active: int) -> ort.IOBinding:
        assert 0 < num_active <= self.num_slots, f"{num_active} active slots of {self.num_slots}"
        binding = self._session.io_binding()
        next_carry = {f"{name}_next": rows for name, rows in self._carries[1 - self._current].items()}
        for name, rows in {**self._inputs, **self._carries[self._current]}.items():
            binding.bind_input(name, *_address(rows[:num_active]))
        for name, rows in {**self._outputs, **next_carry}.items():
            binding.bind_output(name, *_address(rows[:num_active]))
        return binding


def engine_from_bundle(
    bundle: Bundle,
    *,
    precision: str = "fp32",
    num_slots: int,
    num_threads: int | None = None,
    want_logits: bool = False,
) -> OnnxEngine:
    """Open a bundle's step graph; raises BundleError where its sizes are not the manifest's."""
    path = bundle.graph_path(precision)
    engine = OnnxEngine(path, num_slots=num_slots, num_threads=num_threads, want_logits=want_logits)
    for name, size in engine.sizes.items():
        stated = getattr(bundle.manifest, name)
        if size != stated:
            raise BundleError(f"{path} has {name} {size} where the manifest says {stated}: export the bundle again.")
    return engine


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open_session(path: Path, num_threads: int, providers: Sequence[str]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # Idle workers would spin and take the cores from the HTTP process (microsoft/onnxruntime pull request 11841).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # ONNX Runtime has a class for each kind of failure and no common one of its own
        reason = " ".join(str(error).split())
        raise BundleError(f"{path} does not load as an ONNX graph ({reason}): export the bundle again.") from error


def _shapes_of(session: ort.InferenceSession, path: Path) -> Shapes:
    """Each tensor's shape less the batch axis."""
    shapes: dict[str, list[object]] = {}
    for nodes, types in ((session.get_inputs(), INPUT_TYPES), (session.get_outputs(), OUTPUT_TYPES)):
        stated = {node.name: node for node in nodes}
        for name, type_name in types.items():
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


def _allocate(types: Mapping[str, str], shapes: Shapes, num_slots: int, leave_out: Sequence[str] = ()) -> Arrays:
    return {
        name: np.zeros((num_slots, *shapes[name]), _NUMPY_OF[type_name])
        for name, type_name in types.items()
        if name not in leave_out
    }


def _address(rows: NDArray[Any]) -> tuple[str, int, Any, list[int], int]:
    return "cpu", 0, rows.dtype.type, list(rows.shape), rows.ctypes.data
