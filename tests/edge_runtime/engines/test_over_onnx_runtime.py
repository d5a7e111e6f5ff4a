"""The TensorRT engine over ONNX Runtime gives PyTorch's golden traces of shipped bundles.

The engine is the product's: buffers, copies, contexts, recorded graphs, runs ahead of the host.
ONNX Runtime computes each segment at the addresses that the engine sets. On the CPU the driver is
a stand-in too, as an integrated GPU or as a card. The tests marked gpu take ONNX Runtime's CUDA
provider and the real driver; they have not run yet.

Shapes: B slots, S segments, T tokens, V vocabulary.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort
import pytest
from bundle_tools import shipped
from cli_tools import succeeded
from stand_ins import FAKES, forget_stand_ins, play_tensorrt

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.factory import num_gpus
from hrm_edge_runtime.engines.trt import build, cache
from hrm_edge_runtime.engines.trt.drivers import is_installed
from hrm_edge_runtime.engines.trt.engine import TensorRTEngine
from hrm_edge_runtime.parity.report import GATES, breaks, not_judged
from hrm_edge_runtime.parity.walk import compare

CUDA = "CUDAExecutionProvider"
SEVERAL_SEGMENTS = ("sudoku-6x6", "maze-8x8", "logistics-6x6")
SLOTS = 5  # buckets 1, 2, 4 and 8
MOST_IN_A_RUN = 4

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
    monkeypatch.setattr(factory, "TENSORRT_TRIAL", "")  # a child process has no stand-ins
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
    bundle = shipped(name)
    arguments = [str(bundle.path), "--precision", precision, "--force"]
    succeeded(build.app, *arguments)
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
    bundle = shipped(name)
    gates = GATES[precision]["golden"]
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
class Service:
    """A lane over one model, and what its attempts must answer."""

    golden: Golden
    lane: Lane

    @classmethod
    def of(cls, name: str) -> "Service":
        bundle = shipped(name)
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
def test_lanes_that_take_turns_end_with_the_golden_answers() -> None:
    services = [Service.of(name) for name in SEVERAL_SEGMENTS]
    num_ended = 0
    while any(service.lane.has_work for service in services):
        for service in services:
            num_ended += service.step()
    assert num_ended == sum(len(service.golden.tokens_BT) for service in services)
    for service in services:
        service.lane.engine.close()
