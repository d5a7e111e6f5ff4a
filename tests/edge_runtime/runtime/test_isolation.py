"""One client's puzzle never changes another's answer, on the shipped models: exact to the last bit.

Measured with ONNX Runtime 1.31 on x86-64: a row of every product is summed in the same order
whatever the batch, so not even the size of the batch shows. A platform on which this fails would
need a stated tolerance here.

Shapes: T tokens, E puzzle-vector size.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from bundle_tools import shipped
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle

NUM_SLOTS = 8
NUM_SEGMENTS = 5
NUM_QUESTIONS = 4
MODELS = [("sudoku-6x6", "fp32"), ("sudoku-6x6", "int8"), ("sudoku", "fp32"), ("arc-7x7", "fp32")]

Said = tuple[bytes, ...]


def new_engine(name: str, precision: str, num_slots: int, num_threads: int = 1) -> OnnxEngine:
    return engine_from_bundle(
        shipped(name),
        precision=precision,
        num_slots=num_slots,
        num_threads=num_threads,
        want_logits=True,
    )


engine_of = cache(new_engine)
"""Opened once; what it computed before must not matter either."""


def question(name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    golden = shipped(name).golden()
    vector_E = shipped(name).puzzle_table[golden.puzzle_ids_B[number]]
    return golden.tokens_BT[number], np.asarray(vector_E)


@dataclass(kw_only=True)
class Strangers:
    """The neighbors of a slot: random tokens, some with a puzzle vector full of NaN."""

    engine: OnnxEngine
    manifest: Manifest
    num_active: int
    poisoned: float
    rng: np.random.Generator

    def load(self, slot: int) -> None:
        tokens_T = self.rng.integers(0, self.manifest.vocab_size, self.manifest.seq_len)
        vector_E = self.rng.normal(size=self.manifest.puzzle_vector_size).astype(np.float32)
        if self.rng.random() < self.poisoned:
            vector_E[:] = np.nan
        self.engine.load(slot, tokens_T.astype(np.int32), vector_E)

    def change(self, slot: int) -> int:
        """Let a neighbor leave as a lane does, and another come; return where `slot` is now."""
        last = self.num_active - 1
        gone = int(self.rng.integers(self.num_active))
        if gone == slot:
            return slot
        if gone != last:
            self.engine.move(last, gone)
        self.load(last)
        return gone if slot == last else slot


def course(engine: OnnxEngine, slot: int, others: Strangers | None = None) -> list[Said]:
    """What a slot answers in each of its next segments, while others leave and arrive."""
    said = []
    for _ in range(NUM_SEGMENTS):
        if others:
            slot = others.change(slot)
        output = engine.step(others.num_active if others else 1)
        rows = (output.answer_BT, output.halt_margin_B, output.q_halt_B, output.logits_BTV)
        said.append(tuple(row[slot].tobytes() for row in rows))
    return said


@cache
def alone(name: str, precision: str, number: int) -> list[Said]:
    """A question in an engine of one slot that never saw another."""
    engine = new_engine(name, precision, num_slots=1)
    engine.load(0, *question(name, number))
    return course(engine, 0)


@pytest.mark.parametrize(("name", "precision"), MODELS)
@given(
    number=st.integers(0, NUM_QUESTIONS - 1),
    num_active=st.integers(1, NUM_SLOTS),
    place=st.integers(0, NUM_SLOTS - 1),
    neighbors=st.integers(0, 2**32 - 1),
    poisoned=st.floats(0, 1),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=12)
def test_a_puzzle_is_answered_alike_in_any_slot_of_any_batch_beside_anybody(
    name: str,
    precision: str,
    number: int,
    num_active: int,
    place: int,
    neighbors: int,
    poisoned: float,
    threads: int,
):
    engine = engine_of(name, precision, NUM_SLOTS, threads)
    others = Strangers(
        engine=engine,
        manifest=shipped(name).manifest,
        num_active=num_active,
        poisoned=poisoned,
        rng=np.random.default_rng(neighbors),
    )
    slot = place % num_active
    for other in range(num_active):
        others.load(other)
    engine.load(slot, *question(name, number))
    assert course(engine, slot, others) == alone(name, precision, number)
