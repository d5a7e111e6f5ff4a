"""Laws of the models inside the package, over the real engine that serves them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES, Bundle, find_bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.parity.gates import passes
from hrm_edge_runtime.parity.walk import replay

NUM_PUZZLES = 12


@dataclass(frozen=True, kw_only=True)
class Known:
    bundle: Bundle
    tokens_BT: np.ndarray
    alone: list[Attempt]


def job(known_tokens_T: np.ndarray, attempt_id: int, bundle: Bundle) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        tokens_T=known_tokens_T,
        puzzle_vector_E=bundle.puzzle_table[0],
        policy=bundle.manifest.halting_policy(),
        arrival_s=0.0,
    )


def all_results(lane: Lane) -> list[Attempt]:
    results: list[Attempt] = []
    while lane.has_work:
        results += lane.step()
    return results


@pytest.fixture(scope="module")
def known() -> Known:
    """Puzzles of a shipped model, each solved with nobody beside it."""
    bundle = Bundle.open(find_bundle("sudoku-6x6"))
    rng = np.random.default_rng(0)
    questions = [bundle.puzzle.generate(rng, kind).question for kind in ("easy", "medium", "minimal") * 4]
    tokens_BT = np.stack([bundle.puzzle.encode(question) for question in questions])
    lane = Lane(engine_from_bundle(bundle, num_slots=1, num_threads=1), bundle.puzzle, queue_limit=NUM_PUZZLES)
    for attempt_id, tokens_T in enumerate(tokens_BT):
        lane.submit(job(tokens_T, attempt_id, bundle))
    alone = sorted(all_results(lane), key=lambda result: result.attempt_id)
    assert any(result.verified for result in alone)
    return Known(bundle=bundle, tokens_BT=tokens_BT, alone=alone)


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(NUM_PUZZLES)),
    num_slots=st.integers(1, 6),
    cancelled=st.sets(st.integers(0, NUM_PUZZLES - 1), max_size=4),
    steps_between=st.integers(0, 3),
)
def test_a_puzzle_gets_the_same_answer_whatever_its_neighbours(
    known: Known, order: list[int], num_slots: int, cancelled: set[int], steps_between: int
) -> None:
    engine = engine_from_bundle(known.bundle, num_slots=num_slots, num_threads=1)
    lane = Lane(engine, known.bundle.puzzle, queue_limit=NUM_PUZZLES)
    results: list[Attempt] = []
    for attempt_id in order:
        lane.submit(job(known.tokens_BT[attempt_id], attempt_id, known.bundle))
        results += [result for _ in range(steps_between) for result in lane.step()]
    for attempt_id in cancelled:
        lane.cancel(attempt_id)
    results += all_results(lane)
    assert sorted(result.attempt_id for result in results) == list(range(NUM_PUZZLES))
    for result in results:
        expected = known.alone[result.attempt_id]
        if result.halted_by != "cancelled":
            assert np.array_equal(result.answer_T, expected.answer_T)
            assert (result.segments, result.halted_by) == (expected.segments, expected.halted_by)


@pytest.mark.parametrize("path", sorted(SHIPPED_BUNDLES.glob("*.bundle")), ids=lambda path: path.stem)
def test_every_shipped_bundle_still_says_what_pytorch_said(path: Path) -> None:
    bundle = Bundle.open(path)
    report = replay(bundle, lambda slots: engine_from_bundle(bundle, num_slots=slots, want_logits=True))
    assert passes(report), report


@pytest.mark.parametrize("path", sorted(SHIPPED_BUNDLES.glob("*.bundle")), ids=lambda path: path.stem)
def test_every_shipped_model_proves_some_of_its_easiest_puzzles(path: Path) -> None:
    bundle = Bundle.open(path)
    if not bundle.puzzle.proof_exists:
        pytest.skip("no proof exists for this puzzle")
    rng = np.random.default_rng(0)
    questions = [bundle.puzzle.generate(rng, bundle.puzzle.difficulties[0]).question for _ in range(NUM_PUZZLES)]
    lane = Lane(engine_from_bundle(bundle, num_slots=4, num_threads=1), bundle.puzzle, queue_limit=NUM_PUZZLES)
    for attempt_id, question in enumerate(questions):
        lane.submit(job(bundle.puzzle.encode(question), attempt_id, bundle))
    assert sum(result.verified is True for result in all_results(lane)) > NUM_PUZZLES / 2
