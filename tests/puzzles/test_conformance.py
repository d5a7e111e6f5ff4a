"""Every puzzle keeps the laws of `hrm-data check`; each law finds a puzzle that breaks it."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_tools import install
from cli_tools import invoked, succeeded
from files import ROOT

from hrm_puzzles import cli, conformance, registry
from hrm_puzzles.conformance import findings, samples_of
from hrm_puzzles.grid.board import GridSymmetry
from hrm_puzzles.puzzle import Geometry, Parsed, PuzzleError

OWN = ROOT / "docs" / "own-puzzle"
SIZES = ("maze-4x4", "maze-6x9", "logistics-5x8", "sudoku-12x12", "sudoku-16x16")


@pytest.mark.parametrize("name", [*registry.names(), *SIZES])
def test_every_puzzle_keeps_every_law(name: str):
    for law, fault in findings(registry.get(name)):
        assert fault is None, law


@pytest.mark.parametrize(
    ("name", "num_positions", "cells"),
    [("sudoku", 81, ".123456789"), ("maze", 900, "#.SGo"), ("logistics", 100, "#.24DCotf")],
)
def test_tokens_are_the_published_ones(name: str, num_positions: int, cells: str):
    """From 1 on, in the order of these cells; 0 is the pad."""
    puzzle = registry.get(name)
    last = len(cells)
    assert (puzzle.vocab_size, puzzle.seq_len) == (last + 1, num_positions)
    grid = puzzle.board_of(cells.ljust(num_positions, "."))
    assert puzzle.encode(grid)[:last].tolist() == [*range(1, last + 1)]


@pytest.mark.parametrize("name", ["sudoku", "maze-6x9", "logistics-6x6"])
def test_sixty_puzzles_have_sixty_hashes(name: str):
    puzzle = registry.get(name)
    hashes = set()
    for seed in range(5):
        samples = samples_of(puzzle, seed)
        hashes.update(puzzle.equivalence_hash_B(samples.inputs_BT, samples.labels_BT).tolist())
    assert len(hashes) == 5 * conformance.NUM_EXAMPLES


@pytest.fixture
def latin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package of docs/own-puzzle, installed for this test under a built-in name too."""
    (own,) = re.findall(r'^latin-5x5 = "(.+)"$', (OWN / "pyproject.toml").read_text(), re.M)
    install(tmp_path, f"[{registry.GROUP}]\nlatin-5x5 = {own}\nsudoku = {own}\n")
    for folder in (OWN, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    registry._entry_points.cache_clear()
    registry._load.cache_clear()
    yield importlib.import_module("latin").LatinSquare
    registry._entry_points.cache_clear()
    registry._load.cache_clear()
    sys.modules.pop("latin", None)


def broken(**changed: object) -> Callable[[type[Any]], Any]:
    """The Latin square with other attributes."""
    return lambda kind: type("Broken", (kind,), changed)()


def raising(*_: object) -> None:
    raise IndexError("off the board")


def reads_anything(_: object, notation: object) -> Parsed:
    raise TypeError(f"{notation} is not a string")


def always_right(_: object, inputs_BT: np.ndarray, __: np.ndarray) -> np.ndarray:
    return np.ones(len(inputs_BT), np.int8)


def only_first_row(puzzle: Any, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
    verdict_B = type(puzzle).__mro__[1].check_BT(puzzle, inputs_BT, answers_BT)
    return np.repeat(verdict_B[:1], len(inputs_BT))


class OneWay(GridSymmetry):
    def invert(self, tokens_BT: np.ndarray) -> np.ndarray:
        return tokens_BT


def one_way(puzzle: Any, rng: np.random.Generator) -> Any:
    symmetry = type(puzzle).__mro__[1].symmetry(puzzle, rng)
    return OneWay(source_T=symmetry.source_T, relabel_V=symmetry.relabel_V)


FIXED = np.random.default_rng(1)
BREACHES = {
    "geometry_fits": broken(geometry=Geometry(board=(5, 1, 5, 2), num_symbols=5)),
    "nonsense_is_rejected": broken(parse=reads_anything),
    "any_tokens_decode": broken(decode=raising),
    "tokens_fit": broken(encode=lambda _, grid: grid.reshape(-1) + 1),
    "boards_are_read_back": broken(asked=lambda *_: "." * 25),
    "sample_is_read": broken(sample=lambda *_: "1" * 25),
    "seeds_repeat": broken(symmetry=lambda self, _: type(self).__mro__[1].symmetry(self, FIXED)),
    "difficulties_are_known": broken(
        generate=lambda self, rng, _: type(self).__mro__[1].generate(self, rng, "easy")
    ),
    "copies_share_a_hash": broken(
        equivalence_hash_B=lambda _, inputs_BT, __: np.zeros(len(inputs_BT), np.uint64)
    ),
    "symmetry_is_undone": broken(symmetry=one_way),
    "answers_are_right": broken(check_BT=only_first_row),
    "changed_answers_are_wrong": broken(check_BT=always_right),
    "verdicts_do_not_turn": broken(augment_BT=lambda _, __, inputs_BT, ___: (inputs_BT, inputs_BT)),
}


def test_every_law_has_a_puzzle_that_breaks_it():
    groups = (conformance.LAWS, conformance.LAWS_OF_SAMPLES, conformance.LAWS_OF_PROOFS)
    laws = {law.__name__ for group in groups for law in group}
    assert laws == BREACHES.keys()


@pytest.mark.parametrize("law", BREACHES)
def test_a_broken_law_is_found(law: str, latin: type[Any]):
    faults = {one for one, fault in findings(BREACHES[law](latin)) if fault is not None}
    assert getattr(conformance, law).__doc__.splitlines()[0] in faults


def test_a_puzzle_of_ones_own_is_found_and_checked(
    latin: type[Any], monkeypatch: pytest.MonkeyPatch
):
    assert registry.names()[-1] == "latin-5x5"
    assert registry.get("sudoku").seq_len == 81  # not replaced
    printed = succeeded(cli.main, "check", "latin-5x5").output
    assert printed.count("kept ") == len(BREACHES)
    monkeypatch.setattr(latin, "check_BT", always_right)
    ended = invoked(cli.main, "check", "latin-5x5")
    assert ended.exit_code == 1
    assert "BROKEN  `check_BT` disproves an answer with any one cell changed" in ended.output


MISFITS = [
    ("geometry", Geometry(board=(5, 4)), "(5, 4) does not give 25 positions of 7 tokens"),
    ("geometry", Geometry(board=(25,)), "(rows, columns) or (bands, rows, stacks, columns)"),
    ("geometry", Geometry(board=(5, 5), num_symbols=5), "on a grid give 1 or all"),
    ("geometry", Geometry(board=(5, 1, 5, 1), num_symbols=8), "8 symbols, 0 fixed, do not fit"),
    (
        "geometry",
        Geometry(board=(5, 1, 5, 1), num_symbols=5, num_fixed=5),
        "5 symbols, 5 fixed, do not fit",
    ),
    ("name", "latin", "'latin-5x5' gives a puzzle named 'latin'"),
]


@pytest.mark.parametrize(("attribute", "value", "fault"), MISFITS)
def test_a_puzzle_that_does_not_fit_is_rejected_at_registration(
    attribute: str,
    value: object,
    fault: str,
    latin: type[Any],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(latin, attribute, value)
    with pytest.raises(PuzzleError, match=re.escape(fault)):
        registry.get("latin-5x5")


def test_boards_of_any_size_are_found_and_large_sudokus_not_listed():
    assert registry.get("maze-12x20").geometry.board == (12, 20)
    assert registry.get("sudoku-12x12").geometry.board == (4, 3, 3, 4)
    assert registry.get("maze-30x30") is registry.get("maze")
    assert not {"sudoku-12x12", "sudoku-16x16"} & set(registry.names())


@pytest.mark.parametrize("name", ["chess", "maze-3x8", "maze-31x31", "maze-012x8", "sudoku-8x8"])
def test_an_unknown_puzzle_is_rejected_with_the_known_names(name: str):
    message = f"the puzzle '{name}' does not exist; use one of sudoku, sudoku-6x6, sudoku-4x4"
    with pytest.raises(PuzzleError, match=message) as caught:
        registry.get(name)
    assert caught.value.rule == "unknown-puzzle"
