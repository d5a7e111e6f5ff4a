"""Laws of the models inside the package, over the real engine that serves them."""

from pathlib import Path

import numpy as np
import pytest

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES, Bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

NUM_PUZZLES = 12


@pytest.mark.parametrize("path", sorted(SHIPPED_BUNDLES.glob("*.bundle")), ids=lambda path: path.stem)
def test_every_shipped_bundle_still_says_what_pytorch_said(path: Path) -> None:
    bundle = Bundle.open(path)
    comparison = compare_engines(bundle, ParityOptions(engine="cpu:fp32"))
    assert not comparison.breaks, comparison.breaks


@pytest.mark.parametrize("path", sorted(SHIPPED_BUNDLES.glob("*.bundle")), ids=lambda path: path.stem)
def test_every_shipped_model_proves_some_of_its_easiest_puzzles(path: Path) -> None:
    bundle = Bundle.open(path)
    if not bundle.puzzle.proof_exists:
        pytest.skip("no proof exists for this puzzle")
    rng = np.random.default_rng(0)
    questions = [bundle.puzzle.generate(rng, bundle.puzzle.difficulties[0]).question for _ in range(NUM_PUZZLES)]
    lane = Lane(engine_from_bundle(bundle, num_slots=4, num_threads=1), bundle.puzzle, queue_limit=NUM_PUZZLES)
    attempts = [
        Attempt(
            attempt_id=number,
            tokens_T=bundle.puzzle.encode(question),
            puzzle_vector_E=bundle.puzzle_table[0],
            policy=bundle.manifest.halting_policy(),
            arrival_s=0.0,
        )
        for number, question in enumerate(questions)
    ]
    assert sum(result.verified is True for result in run_all(lane, attempts)) > NUM_PUZZLES / 2
