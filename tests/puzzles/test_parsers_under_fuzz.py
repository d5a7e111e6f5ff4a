"""A parser turns any value into a board that encodes, or raises a PuzzleError with a remedy."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError

CHARACTERS = ".0123456789 #SGoDCtf\u2588|-+\n\t,x*_?\u2502\u00b2\u0661\U0001f600\x00"

NUMBERS = st.integers(-3, 12) | st.integers() | st.floats()
WRITTEN = st.text(alphabet=CHARACTERS, max_size=90)
LEAVES = st.none() | st.booleans() | NUMBERS | WRITTEN | st.text(max_size=20)
ARC_KEYS = ["train", "test", "input", "task"]
GRID_KEYS = ["grid", "start", "goal", "path", "depot", "customers", "tour", "x"]
KEYS = st.sampled_from(ARC_KEYS + GRID_KEYS) | st.text(max_size=4)


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=12) | st.dictionaries(KEYS, inner, max_size=6)


def boards(cols: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(-1, 11), min_size=cols, max_size=cols)
    return st.lists(row, max_size=12)


JSON = st.recursive(LEAVES, nested, max_leaves=40)
BOARDS = st.integers(0, 12).flatmap(boards)
ALMOST_TEXT = st.lists(st.sampled_from("0123456789.-"), min_size=79, max_size=83).map("".join)
OBJECTS: dict[str, object] = {
    "maze-8x8": {"grid": [[0] * 8] * 8, "start": [0, 0], "goal": [7, 7]},
    "logistics-6x6": {"grid": [[1] * 6] * 6, "depot": [0, 0], "customers": [[3, 3]]},
}


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)


@cache
def notations(kind: str) -> list[object]:
    """Boards of this kind in several notations, all of them good."""
    puzzle = registry.get(kind)
    rng = np.random.default_rng(5)
    sample = puzzle.sample(["task-1/0", "task-2/0"])
    written: list[object] = [sample]
    if isinstance(sample, str):
        grid = puzzle.generate(rng, puzzle.difficulties[0]).question
        lines = "\n".join(map(str, grid.tolist()))
        written += [grid.tolist(), grid.reshape(-1).tolist(), lines]
    if kind in OBJECTS:
        written.append(OBJECTS[kind])
    return written


@st.composite
def mutated(draw: st.DrawFn, kind: str) -> object:
    """A good notation with a few places changed, doubled or lost."""
    value = copy.deepcopy(draw(st.sampled_from(notations(kind))))
    for _ in range(draw(st.integers(1, 3))):
        value = _mutate(draw, value)
    return value


def _mutate(draw: st.DrawFn, value: object) -> object:
    if isinstance(value, str) and value:
        return _mutate_text(draw, value)
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return _mutate_item(draw, value, key)
    if isinstance(value, list) and value:
        index = draw(st.integers(0, len(value) - 1))
        return _mutate_item(draw, value, index)
    return draw(LEAVES)


def _mutate_text(draw: st.DrawFn, text: str) -> str:
    start = draw(st.integers(0, len(text) - 1))
    length = draw(st.integers(0, 3))
    inserted = draw(st.text(alphabet=CHARACTERS, max_size=3))
    return text[:start] + inserted + text[start + length :]


def _mutate_item(draw: st.DrawFn, values: Any, key: Any) -> object:
    change = draw(st.sampled_from(["deeper", "deeper", "replace", "drop"]))
    if change == "deeper":
        values[key] = _mutate(draw, values[key])
    elif change == "replace":
        values[key] = draw(LEAVES)
    else:
        del values[key]
    return values


def check(puzzle: Puzzle, notation: object) -> None:
    try:
        parsed = puzzle.parse(notation)
    except PuzzleError as error:
        check_refusal(error)
        return
    assert isinstance(parsed, Parsed)
    tokens_T = puzzle.encode(parsed.grid)
    assert tokens_T.shape == (puzzle.seq_len,)
    assert tokens_T.min() >= 0
    assert tokens_T.max() < puzzle.vocab_size
    written = puzzle.write(parsed.grid, parsed.notation)
    json.dumps(written, allow_nan=False)
    if parsed.identifier is None:  # an answer to a named task leaves the name to its question
        assert (puzzle.parse(written).grid == parsed.grid).all()


def check_refusal(error: PuzzleError) -> None:
    assert error.rule
    assert error.remedy
    for number in error.cell or ():
        assert type(number) is int
        assert number >= 1
    json.dumps([error.problem, error.rule, error.remedy, error.cell], allow_nan=False)


def fuzz(kind: str, num_examples: int) -> None:
    puzzle = registry.get(kind)

    @given(JSON | BOARDS | ALMOST_TEXT | mutated(kind) | mutated(kind))
    @settings(max_examples=num_examples, parent=UNHURRIED)
    def run(notation: object) -> None:
        check(puzzle, notation)

    run()


@pytest.mark.parametrize("kind", registry.names())
def test_only_a_puzzle_error_ever_leaves_a_parser(kind: str) -> None:
    fuzz(kind, 80)


@pytest.mark.slow
@pytest.mark.parametrize("kind", registry.names())
def test_only_a_puzzle_error_ever_leaves_a_parser_after_many_tries(kind: str) -> None:
    fuzz(kind, 3000)
