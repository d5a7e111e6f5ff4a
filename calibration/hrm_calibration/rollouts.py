"""Puzzles through the lane that serves: how each ended, and the ranges and states met on the way.

Every segment that a puzzle reaches takes part, because the lane itself decides when a puzzle stops.
Shapes: N puzzles, B slots, T tokens, E puzzle-vector size.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from hrm_calibration.halting_curve import Outcomes
from hrm_calibration.quantise import Histogram, call_sites, with_outputs
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.engines.engine import CARRIES, INPUTS, Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.engines.onnx import CPU, OnnxEngine, Provider
from hrm_edge_runtime.parity.walk import run_questions
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

MAX_STATES = 64
STATES_BYTES = 16 << 20
"""Of all sampled states: few suffice where each has hundreds of positions, and every matrix is tried on all of them."""
MEMORY_BYTES = 512 << 20
"""What the tensors shown may take at once; ONNX Runtime holds each of them twice while it hands them out."""
MAX_SLOTS, MAX_SLOTS_GPU = 8, 64

States = dict[str, np.typing.NDArray[Any]]
"""The graph's inputs by name, one row for each state."""
Observer = Callable[[Mapping[str, np.typing.NDArray[Any]]], object]
"""Called after each segment with the inputs and the tensors shown, by name; the next segment overwrites the arrays."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedGraph:
    """A float32 step graph with its puzzle, its puzzle table and its halting rule."""

    graph: ModelProto
    puzzle: Puzzle
    puzzle_table: Float32
    policy: HaltingPolicy
    num_threads: int = 1
    provider: Provider = CPU

    @property
    def num_slots(self) -> int:
        return slots_for(self.graph, MAX_SLOTS if self.provider is CPU else MAX_SLOTS_GPU)

    def outcomes(
        self, questions: Questions, *, other: ModelProto | None = None, progress: OnProgress = unheard
    ) -> Outcomes:
        """How each puzzle ends in the engine that serves; `other` is run in the graph's place."""
        with self.engine(other or self.graph) as engine:
            return self.solve(engine, questions, progress)

    @contextmanager
    def engine(self, graph: ModelProto) -> Generator[OnnxEngine]:
        """This graph or another form of it in the engine that serves."""
        with TemporaryDirectory() as directory:
            path = Path(directory) / "step.onnx"
            path.write_bytes(graph.SerializeToString())
            settings: dict[str, Any] = {"num_threads": self.num_threads, "provider": self.provider}
            with closing(OnnxEngine(path, num_slots=self.num_slots, **settings)) as engine:
                yield engine

    def observed(
        self,
        questions: Questions,
        observe: Observer,
        *,
        shown: ModelProto | None = None,
        progress: OnProgress = unheard,
    ) -> Outcomes:
        """The same while `observe` sees every segment of `shown`: the graph with what linear layers read as outputs."""
        shown = shown or with_outputs(self.graph, sorted({site.tensor for site in call_sites(self.graph)}))
        session = session_of(shown, self.num_threads, self.provider)
        engine = RecordingEngine(session, self.num_slots, observe)
        return self.solve(engine, questions, progress)

    def solve(self, engine: Engine, questions: Questions, progress: OnProgress = unheard) -> Outcomes:
        """Every puzzle once through a lane, which runs until the last has halted."""
        results: list[Attempt] = []
        for result in run_questions(engine, self.puzzle, questions, self.puzzle_table, self.policy):
            results.append(result)
            progress(len(results), len(questions))
        results.sort(key=lambda result: result.attempt_id)
        pairs = [(result.answer_T, label_T) for result, label_T in zip(results, questions.labels_NT, strict=True)]
        return Outcomes(  # an engine that gave garbage has no answer
            exact_N=np.array([ours is not None and ((ours == label) | (label < 0)).all() for ours, label in pairs]),
            proven_N=np.array([result.verified is True for result in results]),
            segments_N=np.array([result.segments for result in results], np.int32),
        )


class Recorder:
    """An observer that keeps the magnitudes by call site, and a fair sample of the states met.

    In memory that neither puzzles nor segments enlarge (the sample: Vitter 1985, algorithm R).
    """

    def __init__(self, graph: ModelProto) -> None:
        sites = call_sites(graph)
        self._by_tensor = {site.tensor: Histogram() for site in sites}
        self.histograms = {site.name: self._by_tensor[site.tensor] for site in sites}
        self._rng = np.random.default_rng(0)
        self._rows: list[dict[str, np.typing.NDArray[Any]]] = []
        self._num_seen = 0

    def observe(self, arrays: Mapping[str, np.typing.NDArray[Any]]) -> None:
        for tensor, histogram in self._by_tensor.items():
            histogram.add(arrays[tensor])
        for index in range(len(arrays["fresh_B"])):
            self._num_seen += 1
            limit = max(1, min(MAX_STATES, STATES_BYTES // sum(arrays[name][index].nbytes for name in INPUTS)))
            place = len(self._rows) if len(self._rows) < limit else int(self._rng.integers(self._num_seen))
            if place < limit:
                self._rows[place : place + 1] = [{name: arrays[name][index].copy() for name in INPUTS}]

    @property
    def states(self) -> States:
        return {name: np.stack([row[name] for row in self._rows]) for name in INPUTS}


class RecordingEngine(Engine):
    """A step graph on ONNX Runtime whose `observe` is called with the inputs and further outputs of every segment."""

    def __init__(self, session: ort.InferenceSession, num_slots: int, observe: Observer) -> None:
        self.num_slots = num_slots
        self._observe = observe
        self._session = session
        self._rows = {
            value.name: np.zeros((num_slots, *value.shape[1:]), INPUTS[value.name])
            for value in self._session.get_inputs()
        }
        self._names = [value.name for value in self._session.get_outputs()]
        self.seq_len = len(self._rows["tokens_BT"][0])

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._rows["tokens_BT"][slot] = tokens_T
        self._rows["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._rows["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in self._rows.values():
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        inputs = {name: rows[:num_active] for name, rows in self._rows.items()}
        outputs: dict[str, Any] = dict(zip(self._names, self._session.run(self._names, inputs), strict=True))
        self._observe({**outputs, **inputs})
        for name in CARRIES:
            self._rows[name][:num_active] = outputs[f"{name}_next"]
        self._rows["fresh_B"][:num_active] = False
        return StepOutput(
            answer_BT=outputs["answer_BT"], halt_margin_B=outputs["halt_margin_B"], q_halt_B=outputs["q_halt_B"]
        )


def slots_for(graph: ModelProto, most: int = MAX_SLOTS) -> int:
    """As many puzzles at a time as keep what the linear layers read within `MEMORY_BYTES`, at least one."""
    inputs = {value.name: value for value in graph.graph.input}
    if CARRIES[0] not in inputs:
        return 1  # no step graph: who loads it says so
    num_positions = inputs[CARRIES[0]].type.tensor_type.shape.dim[1]
    num_inputs = {tensor.name: tensor.dims[0] for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    widths_I = {site.tensor: num_inputs[site.weight] for site in call_sites(graph)}
    row_bytes = 2 * 4 * num_positions.dim_value * sum(widths_I.values())
    return max(1, min(most, MEMORY_BYTES // row_bytes))


def session_of(graph: ModelProto, num_threads: int = 0, provider: Provider = CPU) -> ort.InferenceSession:
    """A graph on all cores unless a number of threads is given, in no more memory than a step takes."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; its optimiser warns of each fusion that it leaves undone
    options.intra_op_num_threads = num_threads
    options.enable_cpu_mem_arena = False  # an arena would keep the largest step's tensors for good
    # as written: by default what is shown comes last, and every tensor of a step is held until then
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(graph.SerializeToString(), options, providers=[(provider.name, provider.options)])
