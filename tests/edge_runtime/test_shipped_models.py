"""Laws of the models inside the package, over the real engine that serves them."""

from pathlib import Path
from typing import Literal

import pytest

from hrm_edge_runtime.api.request import candidate_models
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, find_bundle, shipped_bundles
from hrm_edge_runtime.engines.factory import Choice
from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines
from hrm_edge_runtime.solve.solvers import from_bundle

PATHS = sorted(SHIPPED_BUNDLES.glob("*.bundle"))
every_bundle = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@every_bundle
def test_every_shipped_bundle_still_says_what_pytorch_said(path: Path) -> None:
    bundle = Bundle.open(path)
    comparison = compare_engines(bundle, ParityOptions(engine="cpu:fp32"))
    assert not comparison.breaks, comparison.breaks


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


def test_a_9x9_sudoku_goes_to_the_small_model_unless_the_hard_one_is_named() -> None:
    served: list[ServedModel] = []
    for path in shipped_bundles().values():
        bundle = Bundle.open(path)
        served.append(ServedModel.of(bundle, precision="fp32", num_slots=1, max_attempts=1))
    for named, expected in ((None, "sudoku"), ("sudoku-hard", "sudoku-hard")):
        request = SolveRequest(puzzle=STUCK[0], kind="sudoku", model=named)
        (chosen,) = candidate_models(served, request)
        assert chosen.name == expected
