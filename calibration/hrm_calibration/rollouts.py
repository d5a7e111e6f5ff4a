"""Run puzzles through the serving lane, and record how each ends and what the graph computes.

The lane decides when a puzzle stops, so calibration sees every segment that serving reaches.
Shapes: N puzzles, B slots, T tokens, E puzzle-vector size.
"""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime import InferenceSession

from hrm_calibration.quantize import Site, call_sites, with_outputs
from hrm_calibration.ranges import Histogram
from hrm_edge_runtime.batching import lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import (
    CARRIES,
    INPUTS,
    Arrays,
    Engine,
    Float32,
    Int32,
)
from hrm_edge_runtime.engines.onnx import CPU, ArrayEngine, OnnxEngine, Provider
from hrm_host.progress import OnProgress, unheard
from hrm_parity.outcomes import Outcomes
from hrm_parity.walk import attempts_of
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

MAX_STATES = 64
"""States that a recorder samples."""
STATES_BYTES = 16 << 20
"""Memory for sampled states. A few suffice if each has hundreds of positions."""
MEMORY_BYTES = 512 << 20
"""Memory for the recorded tensors. ONNX Runtime holds each of them twice when it returns them."""
MAX_SLOTS = 8
MAX_SLOTS_GPU = 64
FLOAT_BYTES = 4

States = Arrays
"""The graph's inputs by name, one row for each state."""
Observer = Callable[[Mapping[str, NDArray[Any]]], object]
"""Receives the inputs and recorded tensors after each segment. The next segment overwrites them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedGraph:
    """A float32 step graph with its puzzle, its puzzle table and its halting policy."""

    graph: ModelProto
    puzzle: Puzzle
    puzzle_table: Float32
    policy: HaltingPolicy
    num_threads: int = 1
    provider: Provider = CPU

    @property
    def num_slots(self) -> int:
        """Slots whose linear-layer inputs fit into `MEMORY_BYTES`; at least one."""
        most = MAX_SLOTS if self.provider is CPU else MAX_SLOTS_GPU
        inputs = {value.name: value for value in self.graph.graph.input}
        carry = inputs.get(CARRIES[0])
        if carry is None:
            return 1  # not a step graph; the engine rejects it later
        num_positions = carry.type.tensor_type.shape.dim[1].dim_value
        read = {site.tensor: site.num_inputs for site in call_sites(self.graph)}
        row_bytes = 2 * FLOAT_BYTES * num_positions * sum(read.values())
        return max(1, min(most, MEMORY_BYTES // row_bytes))

    @contextmanager
    def engine(
        self,
        graph: ModelProto,
        *,
        num_slots: int | None = None,
        want_logits: bool = False,
    ) -> Generator[OnnxEngine]:
        """Open this graph, or another form of it, in the serving engine."""
        with TemporaryDirectory() as directory:
            path = Path(directory) / "step.onnx"
            path.write_bytes(graph.SerializeToString())
            engine = OnnxEngine(
                path,
                num_slots=num_slots or self.num_slots,
                num_threads=self.num_threads,
                provider=self.provider,
                want_logits=want_logits,
            )
            with closing(engine):
                yield engine

    def recorded(
        self,
        questions: Questions,
        progress: OnProgress = unheard,
    ) -> "tuple[Outcomes, Recorder]":
        """How each puzzle ends, and what the linear layers read meanwhile."""
        sites = call_sites(self.graph)
        recorder = Recorder(sites)
        shown = with_outputs(self.graph, sorted({site.tensor for site in sites}))
        return self.observed(questions, recorder.observe, shown, progress), recorder

    def observed(
        self,
        questions: Questions,
        observe: Observer,
        shown: ModelProto,
        progress: OnProgress,
    ) -> Outcomes:
        """How each puzzle ends, while `observe` receives every segment of the graph `shown`."""
        session = session_of(shown, self.num_threads, self.provider)
        engine = recording_engine(session, self.num_slots, observe)
        return self.solve(engine, questions, progress)

    def solve(
        self,
        engine: Engine,
        questions: Questions,
        progress: OnProgress = unheard,
    ) -> Outcomes:
        """Run every puzzle once through a lane until the last has halted."""
        num_puzzles = len(questions)
        exact_N = np.zeros(num_puzzles, np.bool_)
        proven_N = np.zeros(num_puzzles, np.bool_)
        segments_N = np.zeros(num_puzzles, np.int32)
        running = run_questions(engine, self.puzzle, questions, self.puzzle_table, self.policy)
        for num_before, attempt in enumerate(running):
            index = attempt.attempt_id
            exact_N[index] = is_exact(attempt, questions.labels_NT[index])
            proven_N[index] = attempt.verified is True
            segments_N[index] = attempt.segments
            progress(num_before + 1, num_puzzles)
        return Outcomes(exact_N, proven_N, segments_N)


def run_questions(
    engine: Engine,
    puzzle: Puzzle,
    questions: Questions,
    puzzle_table: Float32,
    policy: HaltingPolicy,
) -> Iterator[Attempt]:
    """Run every question once through the serving lane; yield each attempt as it ends.

    The id of an attempt is the number of its question.
    """
    serving = lane.Lane(engine, puzzle, queue_limit=engine.num_slots)
    return lane.run_all(serving, attempts_of(questions, puzzle_table, policy))


def is_exact(attempt: Attempt, label_T: Int32) -> bool:
    """Whether the answer equals the label. An engine that returned garbage has no answer."""
    if attempt.answer_T is None:
        return False
    is_right_T = (attempt.answer_T == label_T) | (label_T < 0)
    return bool(is_right_T.all())


class Recorder:
    """An observer that keeps magnitudes by call site and a fair sample of the states.

    Its memory does not grow with puzzles or segments (sample: Vitter 1985, algorithm R).
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.weights = sorted({site.weight for site in sites})
        self.histograms: dict[str, Histogram] = {}
        self._by_tensor: dict[str, Histogram] = {}
        for site in sites:
            histogram = self._by_tensor.setdefault(site.tensor, Histogram())
            self.histograms[site.name] = histogram
        self._rng = np.random.default_rng(0)
        self._rows: list[States] = []
        self._num_seen = 0

    def observe(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for tensor, histogram in self._by_tensor.items():
            histogram.add(arrays[tensor])
        for index in range(len(arrays["fresh_B"])):
            self._sample({name: arrays[name][index] for name in INPUTS})

    def _sample(self, row: States) -> None:
        """Keep this state with the same probability as every earlier one."""
        self._num_seen += 1
        row_bytes = sum(array.nbytes for array in row.values())
        limit = max(1, min(MAX_STATES, STATES_BYTES // row_bytes))
        place = len(self._rows)
        if place >= limit:
            place = int(self._rng.integers(self._num_seen))
        if place < limit:
            self._rows[place : place + 1] = [copy.deepcopy(row)]

    @property
    def states(self) -> States:
        states: States = {}
        for name in INPUTS:
            states[name] = np.stack([row[name] for row in self._rows])
        return states


def recording_engine(session: InferenceSession, num_slots: int, observe: Observer) -> ArrayEngine:
    """A step graph on ONNX Runtime that passes inputs and outputs of every segment to `observe`."""
    names = [value.name for value in session.get_outputs()]

    def run_graph(inputs: Arrays) -> Arrays:
        arrays: Sequence[Any] = session.run(names, inputs)
        outputs: Arrays = dict(zip(names, arrays, strict=True))
        observe({**outputs, **inputs})
        return outputs

    rows: Arrays = {}
    for value in session.get_inputs():
        rows[value.name] = np.zeros((num_slots, *value.shape[1:]), INPUTS[value.name])
    return ArrayEngine(rows, run_graph)


def session_of(
    graph: ModelProto,
    num_threads: int,
    provider: Provider = CPU,
) -> InferenceSession:
    """Open a graph on `num_threads` threads (0: all cores) that keeps no memory between steps."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only; the optimizer warns of each fusion it skips
    options.intra_op_num_threads = num_threads
    options.enable_cpu_mem_arena = False  # an arena would keep the largest tensors forever
    # Run nodes in their order. By default the recorded outputs come last, and all stay in memory.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [(provider.name, provider.options)]
    return ort.InferenceSession(graph.SerializeToString(), options, providers=providers)
