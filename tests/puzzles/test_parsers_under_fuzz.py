"""A parser turns any value into a board that encodes, or raises a PuzzleError with a remedy."""

import json
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle, PuzzleError

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
OBJECTS = {
    "maze-8x8": {"grid": [[0] * 8] * 8, "start": [0, 0], "goal": [7, 7]},
    "logistics-6x6": {"grid": [[1] * 6] * 6, "depot": [0, 0], "customers": [[3, 3]]},
}
VALUES = ["null", "true", "[]", "{}", "[[1]]", '"x"', "-1", "1e9", "7,", "[7],"]
SPANS = (r"\[[^][]*\]", r"\d+", r'"[^"]*"', ".{0,3}")  # a list, a number, a string, characters
PIECES = st.sampled_from(VALUES) | st.text(alphabet=CHARACTERS, max_size=3)
UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow], database=None)


@cache
def notations(kind: str) -> list[object]:
    """Boards of this kind in several notations, all of them good."""
    puzzle = registry.get(kind)
    rng = np.random.default_rng(5)
    sample = puzzle.sample(["task-1/0", "task-2/0"])
    written = [sample]
    if isinstance(sample, str):
        grid = puzzle.generate(rng, puzzle.difficulties[0]).question
        lines = "\n".join(map(str, grid.tolist()))
        written += [grid.tolist(), grid.reshape(-1).tolist(), lines]
    if kind in OBJECTS:
        written.append(OBJECTS[kind])
    return written


@st.composite
def mutated(draw: st.DrawFn, kind: str) -> object:
    """A good notation with a few pieces of its JSON changed; text if it is no JSON any more."""
    text = json.dumps(draw(st.sampled_from(notations(kind))), ensure_ascii=False)
    for _ in range(draw(st.integers(1, 3))):
        pattern = draw(st.sampled_from(SPANS))
        spans = [match.span() for match in re.finditer(pattern, text)]
        start, end = draw(st.sampled_from(spans or [(0, 1)]))
        text = text[:start] + draw(PIECES) + text[end:]
    try:
        return json.loads(text)
    except ValueError:
        return text


def check(puzzle: Puzzle, notation: object) -> None:
    try:
        parsed = puzzle.parse(notation)
    except PuzzleError as error:
        check_refusal(error)
        return
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
    assert min(error.cell or (1,)) >= 1
    json.dumps([error.problem, error.rule, error.remedy, error.cell], allow_nan=False)


@pytest.mark.parametrize("num_examples", [80, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", registry.names())
def test_only_a_puzzle_error_ever_leaves_a_parser(kind: str, num_examples: int):
    puzzle = registry.get(kind)

    @given(JSON | BOARDS | ALMOST_TEXT | mutated(kind) | mutated(kind))
    @settings(max_examples=num_examples, parent=UNHURRIED)
    def run(notation: object) -> None:
        check(puzzle, notation)

    run()
