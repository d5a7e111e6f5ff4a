"""The ONNX Runtime engine over a real graph: slots do not influence each other.

Every comparison is exact. Each row of every matrix product is summed in the same order whatever the
batch, on x86-64 with ONNX Runtime 1.23 and 1.31; a platform where this fails would need a stated
tolerance here.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_puzzles.puzzle import RIGHT, WRONG

SEQ_LEN = 16
VOCAB_SIZE = 6
WIDTH = 8
NUM_PUZZLES = 12
RNG = np.random.default_rng(3)
TOKENS = RNG.integers(0, VOCAB_SIZE, (NUM_PUZZLES, SEQ_LEN), dtype=np.int32)
VECTORS = RNG.normal(size=(NUM_PUZZLES, WIDTH)).astype(np.float32)
POLICIES = [HaltingPolicy(kind=kind, max_segments=9) for kind in ("learned", "verified", "fixed")]


class Remainder:
    """A proof for a third of all answers, so that every halting reason occurs."""

    vocab_size = VOCAB_SIZE

    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        sum_B = answers_BT.sum(axis=1) + inputs_BT[:, 0]
        return np.where(sum_B % 3 == 0, RIGHT, WRONG).astype(np.int8)


def engine_of(graph: Path, num_slots: int) -> OnnxEngine:
    return OnnxEngine(graph, num_slots=num_slots, num_threads=1, want_logits=True)


def load(engine: OnnxEngine, slot: int, puzzle: int) -> None:
    engine.load(slot, TOKENS[puzzle], VECTORS[puzzle])


def trace(
    engine: OnnxEngine, slot: int, num_active: int, num_segments: int
) -> list[tuple[object, ...]]:
    """What a slot says in each of its next segments, as plain bytes and numbers."""
    said: list[tuple[object, ...]] = []
    for _ in range(num_segments):
        output = engine.step(num_active)
        assert output.logits_BTV is not None
        answer = output.answer_BT[slot].tobytes()
        logits = output.logits_BTV[slot].tobytes()
        said.append((answer, float(output.halt_margin_B[slot]), logits))
    return said


def test_a_slot_says_the_same_whoever_sits_beside_it(tiny_graph: Path) -> None:
    alone = engine_of(tiny_graph, 1)
    crowded = engine_of(tiny_graph, 5)
    load(alone, 0, 0)
    for slot, puzzle in enumerate([3, 4, 0, 5, 6]):
        load(crowded, slot, puzzle)
    assert trace(crowded, 2, 5, 6) == trace(alone, 0, 1, 6)


def test_a_moved_slot_goes_on_where_it_stood(tiny_graph: Path) -> None:
    still = engine_of(tiny_graph, 3)
    moved = engine_of(tiny_graph, 3)
    for engine in (still, moved):
        for slot in range(3):
            load(engine, slot, slot)
        engine.step(3)
    moved.move(2, 0)
    assert trace(moved, 0, 2, 4) == trace(still, 2, 3, 4)


def test_a_slot_moved_before_its_first_segment_is_still_fresh(tiny_graph: Path) -> None:
    engine = engine_of(tiny_graph, 2)
    alone = engine_of(tiny_graph, 1)
    load(engine, 0, 1)
    engine.step(1)
    load(engine, 1, 2)
    engine.move(1, 0)
    load(alone, 0, 2)
    assert trace(engine, 0, 1, 3) == trace(alone, 0, 1, 3)


def test_garbage_left_in_a_slot_does_not_reach_its_next_puzzle(tiny_graph: Path) -> None:
    engine = engine_of(tiny_graph, 2)
    alone = engine_of(tiny_graph, 1)
    engine.load(0, TOKENS[0], np.full(WIDTH, np.nan, np.float32))
    load(engine, 1, 1)
    poisoned = engine.step(2)
    assert poisoned.logits_BTV is not None
    assert np.isnan(poisoned.logits_BTV[0]).all()
    load(engine, 0, 2)
    load(alone, 0, 2)
    assert trace(engine, 0, 2, 3) == trace(alone, 0, 1, 3)


def test_a_neighbour_full_of_nan_changes_nothing(tiny_graph: Path) -> None:
    engine = engine_of(tiny_graph, 2)
    alone = engine_of(tiny_graph, 1)
    engine.load(0, TOKENS[0], np.full(WIDTH, np.nan, np.float32))
    load(engine, 1, 1)
    load(alone, 0, 1)
    assert trace(engine, 1, 2, 4) == trace(alone, 0, 1, 4)


def test_logits_are_handed_out_only_where_they_were_asked_for(tiny_graph: Path) -> None:
    engine = OnnxEngine(tiny_graph, num_slots=1, num_threads=1)
    load(engine, 0, 0)
    assert engine.step(1).logits_BTV is None


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step.onnx").write_bytes(b"no graph at all")
    with pytest.raises(BundleError, match="does not load"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def test_a_graph_without_a_step_graphs_outputs_is_refused(tiny_graph: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_graph)
    del model.graph.output[-1]
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(BundleError, match="lacks logits_BTV"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def test_a_graph_with_a_fixed_batch_is_refused(tiny_graph: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_graph)
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(BundleError, match="open batch axis"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def job(puzzle: int, policy: HaltingPolicy) -> Attempt:
    return Attempt(
        attempt_id=puzzle,
        tokens_T=TOKENS[puzzle],
        puzzle_vector_E=VECTORS[puzzle],
        policy=policy,
        arrival_s=0.0,
    )


def said(result: Attempt) -> tuple[object, ...]:
    assert result.answer_T is not None
    halting = (result.segments, result.halted_by, result.margin, result.q_halt)
    return (result.answer_T.tobytes(), *halting, result.verified)


def alone(graph: Path, puzzle: int, policy: HaltingPolicy) -> tuple[object, ...]:
    lane = Lane(engine_of(graph, 1), Remainder(), queue_limit=1)
    (result,) = run_all(lane, [job(puzzle, policy)])
    return said(result)


steps = st.integers(0, 20)
puzzles = st.integers(0, NUM_PUZZLES - 1)


@settings(max_examples=25, deadline=None)
@given(
    num_slots=st.integers(1, 5),
    order=st.permutations(range(NUM_PUZZLES)),
    bursts=st.lists(st.integers(0, 4), max_size=12),
    cancels=st.dictionaries(steps, puzzles, max_size=6),
)
def test_a_puzzle_gets_the_same_answer_whatever_its_neighbours_arrival_and_cancellations(
    tiny_graph: Path, num_slots: int, order: list[int], bursts: list[int], cancels: dict[int, int]
) -> None:
    policy_of = {puzzle: POLICIES[puzzle % 3] for puzzle in order}
    lane = Lane(engine_of(tiny_graph, num_slots), Remainder(), queue_limit=NUM_PUZZLES)
    arriving = list(order)
    results: list[Attempt] = []
    for step in range(200):
        num_arriving = bursts[step] if step < len(bursts) else NUM_PUZZLES
        for puzzle in arriving[:num_arriving]:
            lane.submit(job(puzzle, policy_of[puzzle]))
        del arriving[:num_arriving]
        alive = {*order} - {*arriving} - {result.attempt_id for result in results}
        if step in cancels and cancels[step] in alive:
            results.append(lane.drop(cancels[step], "cancelled"))
        results += lane.step()
    assert sorted(result.attempt_id for result in results) == list(range(NUM_PUZZLES))
    for result in results:
        puzzle = result.attempt_id
        if result.halted_by != "cancelled":
            assert said(result) == alone(tiny_graph, puzzle, policy_of[puzzle])
