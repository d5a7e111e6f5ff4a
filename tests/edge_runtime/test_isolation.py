"""One client's puzzle never changes another's answer, on the shipped models: exact to the last bit.

Measured with ONNX Runtime 1.31 on x86-64: a row of every product is summed in the same order
whatever the batch, so not even the size of the batch shows. A platform on which this fails would
need a stated tolerance here.

Shapes: T tokens, E puzzle-vector size.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle

NUM_SLOTS = 8
NUM_SEGMENTS = 5
NUM_QUESTIONS = 4
NUM_JOBS = 12
POISONABLE = "arc-7x7"  # a model that takes a puzzle vector, in which poison can come
MODELS = [("sudoku-6x6", "fp32"), ("sudoku-6x6", "int8"), ("sudoku", "fp32"), ("arc-7x7", "fp32")]

Said = tuple[bytes, ...]
jobs = st.integers(0, NUM_JOBS - 1)


@cache
def bundle_of(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


@cache
def engine_of(name: str, precision: str, num_slots: int, num_threads: int = 1) -> OnnxEngine:
    """Opened once; what it computed before must not matter either."""
    return new_engine(name, precision, num_slots, num_threads)


def new_engine(name: str, precision: str, num_slots: int, num_threads: int = 1) -> OnnxEngine:
    return engine_from_bundle(
        bundle_of(name),
        precision=precision,
        num_slots=num_slots,
        num_threads=num_threads,
        want_logits=True,
    )


def question(name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    golden = bundle_of(name).golden()
    vector_E = bundle_of(name).puzzle_table[golden.puzzle_ids_B[number]]
    return golden.tokens_BT[number], np.asarray(vector_E)


def course(engine: OnnxEngine, slot: int, num_active: int) -> list[Said]:
    """What a slot answers in each of its next segments."""
    said: list[Said] = []
    for _ in range(NUM_SEGMENTS):
        output = engine.step(num_active)
        assert output.logits_BTV is not None
        rows = (output.answer_BT, output.halt_margin_B, output.q_halt_B, output.logits_BTV)
        said.append(tuple(row[slot].tobytes() for row in rows))
    return said


@cache
def alone(name: str, precision: str, number: int) -> list[Said]:
    """A question in an engine of one slot that never saw another."""
    engine = new_engine(name, precision, num_slots=1)
    engine.load(0, *question(name, number))
    return course(engine, 0, 1)


def load_a_stranger(
    engine: OnnxEngine, slot: int, name: str, rng: np.random.Generator, poisoned: float
) -> None:
    """Random tokens, with a puzzle vector full of NaN in this share of all cases."""
    manifest = bundle_of(name).manifest
    tokens_T = rng.integers(0, manifest.vocab_size, manifest.seq_len).astype(np.int32)
    vector_E = rng.normal(size=manifest.puzzle_vector_size).astype(np.float32)
    if rng.random() < poisoned:
        vector_E[:] = np.nan
    engine.load(slot, tokens_T, vector_E)


@pytest.mark.parametrize(("name", "precision"), MODELS)
@given(
    number=st.integers(0, NUM_QUESTIONS - 1),
    num_active=st.integers(1, NUM_SLOTS),
    place=st.integers(0, NUM_SLOTS - 1),
    neighbors=st.integers(0, 2**32 - 1),
    poisoned=st.floats(0, 1),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=12, deadline=None)
def test_a_puzzle_is_answered_alike_in_any_slot_of_any_batch_beside_anybody(
    name: str,
    precision: str,
    number: int,
    num_active: int,
    place: int,
    neighbors: int,
    poisoned: float,
    threads: int,
) -> None:
    engine = engine_of(name, precision, NUM_SLOTS, threads)
    rng = np.random.default_rng(neighbors)
    slot = place % num_active
    for other in range(num_active):
        load_a_stranger(engine, other, name, rng, poisoned)
    engine.load(slot, *question(name, number))
    assert course(engine, slot, num_active) == alone(name, precision, number)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@given(
    order=st.permutations(range(NUM_JOBS)),
    cancelled=st.sets(jobs, max_size=4),
    poisoned=st.sets(jobs, max_size=4),
    pauses=st.lists(st.integers(0, 3), min_size=NUM_JOBS, max_size=NUM_JOBS),
    num_slots=st.integers(1, 6),
)
@settings(max_examples=10, deadline=None)
def test_a_lane_answers_everybody_as_if_nobody_else_had_come(
    precision: str,
    order: list[int],
    cancelled: set[int],
    poisoned: set[int],
    pauses: list[int],
    num_slots: int,
) -> None:
    engine = engine_of(POISONABLE, precision, num_slots)
    lane = Lane(engine, bundle_of(POISONABLE).puzzle, queue_limit=20)
    results: list[Attempt] = []
    alive: set[int] = set()
    for number, pause in zip(order, pauses, strict=True):
        lane.submit(job(number, poisoned=number in poisoned))
        for _ in range(pause):
            results += lane.step()
        alive.add(number)
        alive -= {result.attempt_id for result in results}
        for other in cancelled & alive:
            results.append(lane.drop(other, "cancelled"))
    while lane.has_work:
        results += lane.step()
    assert sorted(result.attempt_id for result in results) == list(range(NUM_JOBS))
    for result in results:
        if result.attempt_id in poisoned:
            assert result.halted_by in ("failed", "cancelled")
        elif result.halted_by != "cancelled":
            assert fields(result) == solo(precision, result.attempt_id)


def job(number: int, *, poisoned: bool = False) -> Attempt:
    tokens_T, vector_E = question(POISONABLE, number)
    return Attempt(
        attempt_id=number,
        tokens_T=tokens_T,
        puzzle_vector_E=np.full_like(vector_E, np.nan) if poisoned else vector_E,
        policy=HaltingPolicy(kind="fixed", max_segments=2 + number % 5),
        arrival_s=float(number),
    )


@cache
def solo(precision: str, number: int) -> tuple[object, ...]:
    engine = new_engine(POISONABLE, precision, num_slots=1)
    lane = Lane(engine, bundle_of(POISONABLE).puzzle, queue_limit=1)
    (result,) = run_all(lane, [job(number)])
    return fields(result)


def fields(result: Attempt) -> tuple[object, ...]:
    assert result.answer_T is not None
    halting = (result.verified, result.segments, result.halted_by, result.margin, result.q_halt)
    return (result.answer_T.tobytes(), *halting)
