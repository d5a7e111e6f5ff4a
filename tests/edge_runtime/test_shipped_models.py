"""Laws of the models inside the package, over the real engine that serves them."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, find_bundle
from hrm_edge_runtime.engines.factory import Choice
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines
from hrm_edge_runtime.solve.solvers import from_bundle

NUM_PUZZLES = 8
PATHS = sorted(SHIPPED_BUNDLES.glob("*.bundle"))
every_bundle = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@every_bundle
def test_every_shipped_bundle_still_says_what_pytorch_said(path: Path) -> None:
    bundle = Bundle.open(path)
    comparison = compare_engines(bundle, ParityOptions(engine="cpu:fp32"))
    assert not comparison.breaks, comparison.breaks


@every_bundle
def test_every_shipped_model_proves_some_of_its_easiest_puzzles(path: Path) -> None:
    bundle = Bundle.open(path)
    puzzle = bundle.puzzle
    if not puzzle.proof_exists:
        pytest.skip("no proof exists for this puzzle")
    rng = np.random.default_rng(0)
    attempts: list[Attempt] = []
    for number in range(NUM_PUZZLES):
        example = puzzle.generate(rng, puzzle.difficulties[0])
        attempt = Attempt(
            attempt_id=number,
            tokens_T=puzzle.encode(example.question),
            puzzle_vector_E=bundle.puzzle_table[0],
            policy=bundle.manifest.halting_policy(),
            arrival_s=0.0,
        )
        attempts.append(attempt)
    engine = engine_from_bundle(bundle, num_slots=4, num_threads=1)
    lane = Lane(engine, puzzle, queue_limit=NUM_PUZZLES)
    num_proven = sum(result.verified is True for result in run_all(lane, attempts))
    assert num_proven > NUM_PUZZLES / 2


STUCK = (  # held-out puzzles on which one plain attempt is undecided after 60 segments
    "35.1...........83....57.9..9..2..6...83...12...2..9..4..4.61....35...........5.68",
    "9......433.46..5...6.3...9.....6.32....7.3....83.1.....7...8.3...6..42.915......7",
    ".....1...9.3..6..56..4...7.89..7...2..4.....8..7..9...358.....67...3...........2.",
    "6.5...8.48.........328.....7.342..8.4...3...2.5..793.6.....216.........85.4...2.3",
)


def test_the_9x9_model_proves_with_hypotheses_what_it_leaves_undecided_without() -> None:
    bundle = Bundle.open(find_bundle("sudoku"))
    solver = from_bundle(bundle, Choice(engine="cpu", precision="fp32"), num_threads=1)
    ways: tuple[Literal["plain", "hypotheses"], ...] = ("plain", "hypotheses")
    proven = dict.fromkeys(ways, 0)
    for how in ways:
        requests = [SolveRequest(puzzle=puzzle, how=how, max_segments=60) for puzzle in STUCK]
        for _, reply in solver.solve_all(requests):
            assert isinstance(reply, SolveAnswer)
            assert reply.how == how
            proven[how] += reply.status == "proven"
    assert proven["hypotheses"] > proven["plain"]
