"""An engine that shows what every linear layer reads, to calibrate on the very states that serving passes through.

It keeps the contract of every engine, so the lane that serves drives it: same loop, same halting, same compaction.
Shapes: B slots, T tokens, E puzzle-vector size, N positions, D hidden, I inputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from hrm_calibration.quantise import call_sites
from hrm_edge_runtime.engines.engine import StepOutput

MEMORY_BYTES = 512 << 20
"""What the tensors shown may take at once; ONNX Runtime holds each of them twice while it hands them out."""
MAX_SLOTS = 8
CARRIES = ("z_high_BND", "z_low_BND")

Observer = Callable[[Mapping[str, NDArray[Any]]], object]
"""Hears of each segment: the graph's inputs and the tensors shown, by name, one row for each live puzzle.

The arrays are the engine's own, which the next segment overwrites.
"""


class RecordingEngine:
    """A step graph on ONNX Runtime whose `observe` hears the inputs of every segment and the tensors `shown`.

    Without a choice those that the linear layers read.
    """

    def __init__(
        self, graph: onnx.ModelProto, *, num_threads: int, observe: Observer, shown: Iterable[str] | None = None
    ) -> None:
        self.num_slots = slots_for(graph)
        self._observe = observe
        self._shown = sorted({site.tensor for site in call_sites(graph)} if shown is None else shown)
        self._session = _session(_with_outputs(graph, self._shown), num_threads)
        self._rows = {
            value.name: np.zeros((self.num_slots, *value.shape[1:]), _NUMPY_OF[value.type])
            for value in self._session.get_inputs()
        }
        self._names = [value.name for value in self._session.get_outputs()]
        self.seq_len = len(self._rows["tokens_BT"][0])

    def load(self, slot: int, tokens_T: NDArray[np.int32], puzzle_vector_E: NDArray[np.float32]) -> None:
        self._rows["tokens_BT"][slot] = tokens_T
        self._rows["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._rows["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in self._rows.values():
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        inputs = {name: rows[:num_active] for name, rows in self._rows.items()}
        outputs: dict[str, Any] = dict(zip(self._names, self._session.run(self._names, inputs), strict=True))
        self._observe({**inputs, **{name: outputs[name] for name in self._shown}})
        for name in CARRIES:
            self._rows[name][:num_active] = outputs[f"{name}_next"]
        self._rows["fresh_B"][:num_active] = False
        return StepOutput(
            answer_BT=outputs["answer_BT"], halt_margin_B=outputs["halt_margin_B"], q_halt_B=outputs["q_halt_B"]
        )

    def close(self) -> None:
        del self._session


_NUMPY_OF: dict[str, Any] = {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}


def slots_for(graph: onnx.ModelProto) -> int:
    """As many puzzles at a time as keep the tensors shown within `MEMORY_BYTES`, at least one."""
    num_positions = {value.name: value for value in graph.graph.input}[CARRIES[0]].type.tensor_type.shape.dim[1]
    num_inputs = {tensor.name: tensor.dims[0] for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    widths_I = {site.tensor: num_inputs[site.weight] for site in call_sites(graph)}
    row_bytes = 2 * 4 * num_positions.dim_value * sum(widths_I.values())
    return max(1, min(MAX_SLOTS, MEMORY_BYTES // row_bytes))


def _with_outputs(graph: onnx.ModelProto, tensors: list[str]) -> onnx.ModelProto:
    shown = onnx.ModelProto()
    shown.CopyFrom(graph)
    given = {value.name for value in graph.graph.output}
    extra = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in tensors if name not in given]
    shown.graph.output.extend(extra)
    return shown


def _session(graph: onnx.ModelProto, num_threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.enable_cpu_mem_arena = False  # an arena would keep the largest step's tensors for good
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
