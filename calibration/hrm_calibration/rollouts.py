"""Puzzles through the lane that serves: what each ended with, and the ranges and states met on the way.

Carries of every segment a puzzle really reaches take part, as often as it is reached, because the lane itself decides
when a puzzle stops and which takes its place.
Shapes: N puzzles, K sampled states, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from hrm_calibration.quantise import call_sites
from hrm_calibration.ranges import Histogram
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker, Lane, Result, run_all
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_puzzles.data.held_out import Questions

MAX_STATES = 64
STATES_BYTES = 16 << 20
"""Of all sampled states: few suffice where each has hundreds of positions, and every matrix is tried on all of them."""
INPUTS = ("tokens_BT", "puzzle_vector_BE", "fresh_B", "z_high_BND", "z_low_BND")

Count = Callable[[int], object]
"""Hears how many puzzles are done."""
States = dict[str, NDArray[Any]]
"""The graph's inputs by name, one row for each state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How each puzzle ended under a policy; `exact_N` where the answer equals the label."""

    exact_N: NDArray[np.bool_]
    proven_N: NDArray[np.bool_]
    segments_N: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.exact_N)

    def first(self, count: int) -> Outcome:
        return Outcome(exact_N=self.exact_N[:count], proven_N=self.proven_N[:count], segments_N=self.segments_N[:count])


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """Magnitudes by call site, some of the states met, and how the puzzles ended."""

    histograms: Mapping[str, Histogram]
    states: States
    outcome: Outcome


def solve(
    engine: Engine,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    progress: Count | None = None,
) -> Outcome:
    """Every puzzle once through a lane, which runs until the last has halted."""
    lane = Lane(engine, puzzle, queue_limit=engine.num_slots)
    results: dict[int, Result] = {}
    attempts = (_job(index, questions, puzzle_table, policy) for index in range(len(questions)))
    for result in run_all(lane, attempts):
        results[result.attempt_id] = result
        if progress is not None:
            progress(len(results))
    return _outcome(questions, results)


def record(
    graph: onnx.ModelProto,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    num_threads: int = 1,
    seed: int = 0,
    progress: Count | None = None,
) -> Recording:
    """The ranges of every call site over whole rollouts, in memory that neither puzzles nor segments enlarge."""
    tensor_of = {site.name: site.tensor for site in call_sites(graph)}
    by_tensor = {tensor: Histogram() for tensor in tensor_of.values()}
    sample = _Reservoir(np.random.default_rng(seed))

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        sample.offer({name: arrays[name] for name in INPUTS})
        for tensor, histogram in by_tensor.items():
            histogram.add(arrays[tensor])

    engine = RecordingEngine(graph, num_threads=num_threads, observe=observe)
    try:
        outcome = solve(engine, puzzle, puzzle_table, questions, policy, progress=progress)
    finally:
        engine.close()
    histograms = {site: by_tensor[tensor] for site, tensor in tensor_of.items()}
    return Recording(histograms=histograms, states=sample.states(), outcome=outcome)


class _Reservoir:
    """A fair sample of all rows offered, however many come (Vitter 1985, algorithm R)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._rows: list[dict[str, NDArray[Any]]] = []
        self._num_seen = 0

    def offer(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for index in range(len(arrays["fresh_B"])):
            self._num_seen += 1
            limit = max(1, min(MAX_STATES, STATES_BYTES // sum(rows[index].nbytes for rows in arrays.values())))
            place = len(self._rows) if len(self._rows) < limit else int(self._rng.integers(self._num_seen))
            if place < limit:
                self._rows[place : place + 1] = [{name: rows[index].copy() for name, rows in arrays.items()}]

    def states(self) -> States:
        return {name: np.stack([row[name] for row in self._rows]) for name in INPUTS}


def _job(index: int, questions: Questions, puzzle_table: NDArray[np.float32], policy: HaltingPolicy) -> Attempt:
    vector_E = puzzle_table[questions.puzzle_ids_N[index]]
    return Attempt(
        attempt_id=index, tokens_T=questions.tokens_NT[index], puzzle_vector_E=vector_E, policy=policy, arrival_s=0.0
    )


def _outcome(questions: Questions, results: Mapping[int, Result]) -> Outcome:
    in_order = [results[index] for index in range(len(questions))]
    return Outcome(
        exact_N=np.array(
            [_is_exact(result.answer_T, label_T) for result, label_T in zip(in_order, questions.labels_NT, strict=True)]
        ),
        proven_N=np.array([result.verified is True for result in in_order]),
        segments_N=np.array([result.segments for result in in_order], np.int32),
    )


def _is_exact(answer_T: NDArray[np.int32] | None, label_T: NDArray[np.int32]) -> bool:
    """Equal wherever the label says anything; an engine that gave garbage has no answer."""
    return answer_T is not None and bool(((answer_T == label_T) | (label_T < 0)).all())


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
