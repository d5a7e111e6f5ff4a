"""The TensorRT engine over ONNX Runtime gives PyTorch's golden traces of shipped bundles.

The engine is the product's: buffers, copies, contexts, recorded graphs, runs ahead of the host.
ONNX Runtime computes each segment at the addresses that the engine sets. On the CPU the driver is
a stand-in too, as an integrated GPU or as a card. The tests marked gpu take ONNX Runtime's CUDA
provider and the real driver; they have not run yet.

Shapes: B slots, S segments, T tokens, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from stand_ins import FAKES, forget_stand_ins, play_tensorrt
from typer.testing import CliRunner

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle, Golden
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.factory import num_gpus
from hrm_edge_runtime.engines.trt import build, cache
from hrm_edge_runtime.engines.trt.drivers import is_installed
from hrm_edge_runtime.engines.trt.engine import TensorRTEngine
from hrm_edge_runtime.parity.options import DEFAULT_FILE
from hrm_edge_runtime.parity.report import LOGIT_TOLERANCE, breaks, not_judged, read_gates
from hrm_edge_runtime.parity.walk import compare

CUDA = "CUDAExecutionProvider"
SEVERAL_SEGMENTS = ("sudoku-6x6", "maze-8x8", "logistics-6x6")
SLOTS = 5  # buckets 1, 2, 4 and 8
MOST_IN_A_RUN = 4
LATER_TOLERANCE = 5 * LOGIT_TOLERANCE  # see LOGIT_TOLERANCE

REAL_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(num_gpus() == 0, reason="no CUDA device on this machine"),
    pytest.mark.skipif(
        CUDA not in ort.get_available_providers(), reason="this ONNX Runtime lacks CUDA"
    ),
    pytest.mark.skipif(
        not is_installed("cuda.bindings") and not is_installed("pycuda"),
        reason="neither cuda-bindings nor PyCUDA is installed",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps the engines of each machine from test to test."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(params=["board", "card", pytest.param("real card", marks=REAL_CARD)])
def machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[str]:
    """An integrated GPU, a card with memory of its own, or a real card with real memory."""
    kind: str = request.param
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / kind))
    monkeypatch.setattr(build, "MEASURE_S", 0.0)
    monkeypatch.setattr(build, "MIN_STEPS", 1)
    forget_stand_ins()
    if kind == "real card":
        monkeypatch.setenv("FAKE_TENSORRT_PROVIDER", CUDA)
        play_tensorrt(monkeypatch)
    else:
        monkeypatch.setenv("FAKE_CUDA_INTEGRATED", str(int(kind == "board")))
        monkeypatch.syspath_prepend(str(FAKES))
    yield kind
    forget_stand_ins()


@pytest.fixture
def recorded(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test in which a segment runs without a CUDA graph."""
    caplog.set_level(logging.WARNING)
    yield
    assert "runs without a CUDA graph" not in caplog.text


def opened(name: str, precision: str = "fp32", *, want_logits: bool = True) -> TensorRTEngine:
    """Build the engine unless it is on disk, and open it for `SLOTS`."""
    bundle = Bundle.open(find_bundle(name))
    arguments = [str(bundle.path), "--precision", precision, "--force"]
    done = CliRunner().invoke(build.app, arguments)
    assert done.exit_code == 0, done.stderr
    return cache.open_engine(bundle, precision=precision, num_slots=SLOTS, want_logits=want_logits)


@pytest.mark.usefixtures("machine", "recorded")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("sudoku-6x6", "fp32"),
        ("maze-8x8", "fp16"),
        ("logistics-6x6", "fp32"),
        ("arc-7x7", "fp16"),
    ],
)
def test_every_gate_of_the_golden_traces_holds(name: str, precision: str) -> None:
    bundle = Bundle.open(find_bundle(name))
    gates = read_gates(DEFAULT_FILE, precision, "golden")
    with closing(opened(name, precision)) as engine:
        report = compare(
            bundle.golden(),
            engine,
            puzzle_table=bundle.puzzle_table,
            puzzle=bundle.puzzle,
            policy=bundle.manifest.halting_policy(precision),
        )
    assert report.num_puzzles == len(bundle.golden().tokens_BT)
    assert breaks(report, gates) == []
    assert not_judged(report, gates) == []


@dataclass(kw_only=True)
class Trace:
    """The puzzle in a slot and the segments that it has run."""

    row: int
    num_segments: int = 0


class Course:
    """Loads, moves and runs at random, and compares every segment with the golden traces."""

    def __init__(self, engine: TensorRTEngine, bundle: Bundle, seed: int) -> None:
        self.graphs: set[tuple[int, int, bool]] = set()
        """The bucket, the place and whether inputs were sent, of each segment that ran."""
        self.num_moves = 0
        self._engine = engine
        self._bundle = bundle
        self._golden = bundle.golden()
        self._rng = np.random.default_rng(seed)
        self._traces: list[Trace] = []
        self._count_graphs()

    def run(self, num_active: int) -> None:
        """Leave `num_active` traces, then run them up to `MOST_IN_A_RUN` segments."""
        most = len(self._golden.answer_SBT)
        for slot in reversed(range(len(self._traces))):
            if self._traces[slot].num_segments == most:
                self._remove(slot)
        while len(self._traces) > num_active:
            self._remove(int(self._rng.integers(len(self._traces))))
        while len(self._traces) < num_active:
            self._load()
        num_left = min(most - trace.num_segments for trace in self._traces)
        longest = min(num_left, MOST_IN_A_RUN)
        length = int(self._rng.integers(1, longest + 1))
        for output in self._engine.run(num_active, length):
            self._check(output)

    def _load(self) -> None:
        row = int(self._rng.integers(len(self._golden.tokens_BT)))
        vector_E = self._bundle.puzzle_table[self._golden.puzzle_ids_B[row]]
        self._engine.load(len(self._traces), self._golden.tokens_BT[row], vector_E)
        self._traces.append(Trace(row=row))

    def _remove(self, slot: int) -> None:
        """Give up the trace in `slot`; the last one moves there."""
        last = self._traces.pop()
        if slot < len(self._traces):
            self._traces[slot] = last
            self._engine.move(len(self._traces), slot)
            self.num_moves += 1

    def _check(self, output: StepOutput) -> None:
        golden = self._golden
        assert output.logits_BTV is not None
        for slot, trace in enumerate(self._traces):
            index = (trace.num_segments, trace.row)
            trace.num_segments += 1
            assert (output.answer_BT[slot] == golden.answer_SBT[index]).all()
            gap_TV = np.abs(output.logits_BTV[slot] - golden.logits_SBTV[index])
            assert gap_TV.max() < LATER_TOLERANCE
            assert abs(output.halt_margin_B[slot] - golden.halt_margin_SB[index]) < LATER_TOLERANCE

    def _count_graphs(self) -> None:
        launches = self._engine._launches
        for key, launch in list(launches.items()):

            def counted(
                key: tuple[int, int, bool] = key, launch: Callable[[], None] = launch
            ) -> None:
                self.graphs.add(key)
                launch()

            launches[key] = counted


@pytest.mark.usefixtures("machine", "recorded")
@pytest.mark.parametrize("name", SEVERAL_SEGMENTS)
def test_traces_survive_loads_moves_and_runs_in_every_graph_of_every_bucket(name: str) -> None:
    bundle = Bundle.open(find_bundle(name))
    with closing(opened(name)) as engine:
        course = Course(engine, bundle, seed=7)
        for turn in range(50):
            course.run(num_active=1 + turn % SLOTS)
        assert {bucket for bucket, _, _ in course.graphs} == {1, 2, 4, 8}
        assert course.graphs == set(engine._launches)
        assert course.num_moves > 0


@dataclass(kw_only=True)
class Service:
    """A lane over one model, and what its attempts must answer."""

    golden: Golden
    lane: Lane

    @classmethod
    def of(cls, name: str) -> "Service":
        bundle = Bundle.open(find_bundle(name))
        golden = bundle.golden()
        num_puzzles = len(golden.tokens_BT)
        engine = opened(name, want_logits=False)
        lane = Lane(engine, bundle.puzzle, queue_limit=num_puzzles, run_length=MOST_IN_A_RUN)
        for row in range(num_puzzles):
            vector_E = bundle.puzzle_table[golden.puzzle_ids_B[row]]
            most_segments = 1 + (5 * row) % len(golden.answer_SBT)
            attempt = Attempt(
                attempt_id=row,
                tokens_T=golden.tokens_BT[row],
                puzzle_vector_E=vector_E,
                policy=HaltingPolicy(kind="fixed", max_segments=most_segments),
                arrival_s=0.0,
            )
            lane.submit(attempt)
        return cls(golden=golden, lane=lane)

    def step(self) -> int:
        """Run a segment; returns the number of attempts that ended, all with golden answers."""
        ended = self.lane.step()
        for attempt in ended:
            index = (attempt.segments - 1, attempt.attempt_id)
            assert attempt.segments == attempt.policy.max_segments
            assert attempt.answer_T is not None
            assert (attempt.answer_T == self.golden.answer_SBT[index]).all()
        return len(ended)


@pytest.mark.usefixtures("machine", "recorded")
def test_lanes_that_take_turns_with_a_segment_of_each_in_flight_end_with_the_golden_answers() -> (
    None
):
    services = [Service.of(name) for name in SEVERAL_SEGMENTS]
    num_ended = 0
    while any(service.lane.has_work for service in services):
        for service in services:
            num_ended += service.step()
    assert num_ended == sum(len(service.golden.tokens_BT) for service in services)
    for service in services:
        service.lane.engine.close()
