"""One client's puzzle never changes another's answer, on the shipped models: exact to the last bit.

Measured with ONNX Runtime 1.31 on x86-64: a row of every product is summed in the same order whatever the batch, so not
even the size of the batch shows. A platform where this fails would need a stated tolerance here.

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

NUM_SLOTS, NUM_SEGMENTS, NUM_QUESTIONS = 8, 5, 4
POISONABLE = "arc-7x7"  # a model that takes a puzzle vector, in which poison can come
MODELS = [("sudoku-6x6", "fp32"), ("sudoku-6x6", "int8"), ("sudoku", "fp32"), ("arc-7x7", "fp32")]

Said = tuple[bytes, bytes, bytes, bytes]


@cache
def bundle_of(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


@cache
def engine_of(
    name: str, precision: str, num_threads: int = 1, num_slots: int = NUM_SLOTS
) -> OnnxEngine:
    """Opened once; what it computed before must not matter either."""
    return engine_from_bundle(
        bundle_of(name),
        precision=precision,
        num_slots=num_slots,
        num_threads=num_threads,
        want_logits=True,
    )


def question(name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    golden, table = bundle_of(name).golden(), bundle_of(name).puzzle_table
    return golden.tokens_BT[number], np.asarray(table[golden.puzzle_ids_B[number]])


def said_by(engine: OnnxEngine, slot: int, num_active: int) -> Said:
    output = engine.step(num_active)
    assert output.logits_BTV is not None
    rows = (output.answer_BT, output.halt_margin_B, output.q_halt_B, output.logits_BTV)
    return tuple(row[slot].tobytes() for row in rows)  # type: ignore[return-value]


@cache
def alone(name: str, precision: str, number: int) -> list[Said]:
    """A question in an engine of one slot that never saw another."""
    engine = engine_from_bundle(
        bundle_of(name), precision=precision, num_slots=1, num_threads=1, want_logits=True
    )
    engine.load(0, *question(name, number))
    return [said_by(engine, 0, 1) for _ in range(NUM_SEGMENTS)]


@pytest.mark.parametrize(("name", "precision"), MODELS)
@given(
    number=st.integers(0, NUM_QUESTIONS - 1),
    num_active=st.integers(1, NUM_SLOTS),
    place=st.integers(0, NUM_SLOTS - 1),
    neighbours=st.integers(0, 2**32 - 1),
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
    neighbours: int,
    poisoned: float,
    threads: int,
) -> None:
    engine, rng, manifest = (
        engine_of(name, precision, threads),
        np.random.default_rng(neighbours),
        bundle_of(name).manifest,
    )
    slot = place % num_active
    for other in range(num_active):
        tokens_T = rng.integers(0, manifest.vocab_size, manifest.seq_len).astype(np.int32)
        vector_E = rng.normal(size=manifest.puzzle_vector_size).astype(np.float32)
        engine.load(
            other, tokens_T, np.full_like(vector_E, np.nan) if rng.random() < poisoned else vector_E
        )
    engine.load(slot, *question(name, number))
    assert [said_by(engine, slot, num_active) for _ in range(NUM_SEGMENTS)] == alone(
        name, precision, number
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@given(
    order=st.permutations(range(12)),
    cancelled=st.sets(st.integers(0, 11), max_size=4),
    poisoned=st.sets(st.integers(0, 11), max_size=4),
    pauses=st.lists(st.integers(0, 3), min_size=12, max_size=12),
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
    bundle, engine = bundle_of(POISONABLE), engine_of(POISONABLE, precision, num_slots=num_slots)
    lane, results = Lane(engine, bundle.puzzle, queue_limit=20), list[Attempt]()
    for place, (number, pause) in enumerate(zip(order, pauses, strict=True), 1):
        lane.submit(job(number, poisoned=number in poisoned))
        results += [result for _ in range(pause) for result in lane.step()]
        for other in cancelled & {*order[:place]} - {result.attempt_id for result in results}:
            results.append(lane.drop(other, "cancelled"))
    while lane.has_work:
        results += lane.step()
    assert sorted(result.attempt_id for result in results) == list(range(12))
    for result in results:
        if result.attempt_id in poisoned | cancelled:
            assert result.halted_by in ("failed", "cancelled") or result.attempt_id not in poisoned
        else:
            assert fields(result) == solo(precision, result.attempt_id)


def job(number: int, *, poisoned: bool = False) -> Attempt:
    tokens_T, vector_E = question(POISONABLE, number)
    return Attempt(
        attempt_id=number,
        tokens_T=tokens_T,
        puzzle_vector_E=np.full_like(vector_E, np.nan) if poisoned else vector_E,
        policy=HaltingPolicy(kind="verified", max_segments=9),
        arrival_s=float(number),
    )


@cache
def solo(precision: str, number: int) -> tuple[object, ...]:
    bundle = bundle_of(POISONABLE)
    engine = engine_from_bundle(bundle, precision=precision, num_slots=1, num_threads=1)
    (result,) = run_all(Lane(engine, bundle.puzzle, queue_limit=1), [job(number)])
    return fields(result)


def fields(result: Attempt) -> tuple[object, ...]:
    assert result.answer_T is not None
    return (
        result.answer_T.tobytes(), result.verified, result.segments, result.halted_by, result.margin, result.q_halt
    )  # fmt: skip
