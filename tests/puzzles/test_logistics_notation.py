"""Every notation of a city is read and answered alike; everything else is refused in one sentence with its rule."""

import pickle
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles.logistics.logistics import Logistics
from hrm_puzzles.puzzle import PuzzleError

CITY = Logistics(name="logistics-5x6", rows=5, cols=6)
LINES = ["D.2C#.", "..#.#.", "#.4..C", "#.....", "######"]
ANSWER = ["DotC#.", "..#o#.", "#.4ooC", "#.....", "######"]
NUMBERS = [[5, 1, 2, 6, 0, 1], [1, 1, 0, 1, 0, 1], [0, 1, 4, 1, 1, 6], [0, 1, 1, 1, 1, 1], [0] * 6]
ANSWER_NUMBERS = [[5, 11, 12, 6, 0, 1], [1, 1, 0, 11, 0, 1], [0, 1, 4, 11, 11, 6], [0, 1, 1, 1, 1, 1], [0] * 6]
COSTS = [[1, 1, 2, 1, 0, 1], [1, 1, 0, 1, 0, 1], [0, 1, 4, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0] * 6]
OBJECT: dict[str, object] = {"grid": COSTS, "depot": [0, 0], "customers": [[0, 3], [2, 5]]}
TOUR = [[0, 0], [0, 1], [0, 2], [0, 3], [1, 3], [2, 3], [2, 4], [2, 5]]

NOTATIONS: dict[str, tuple[object, object]] = {
    "lines": ("\n".join(LINES), "\n".join(ANSWER)),
    "carriage returns": ("\r\n".join(LINES) + "\r\n", "\n".join(ANSWER)),
    "quoted block": ("\n" + "\n".join(LINES) + "\n", "\n".join(ANSWER)),
    "one string": ("".join(LINES), "".join(ANSWER)),
    "list of lines": (LINES, ANSWER),
    "rows": ([list(line) for line in LINES], [list(line) for line in ANSWER]),
    "numbers": (NUMBERS, ANSWER_NUMBERS),
    "object": (OBJECT, {**OBJECT, "tour": TOUR}),
}


def refusal(notation: object) -> PuzzleError:
    with pytest.raises(PuzzleError) as caught:
        CITY.parse(notation)
    return caught.value


@pytest.mark.parametrize("name", NOTATIONS)
def test_every_notation_is_read_alike_and_answered_in_kind(name: str) -> None:
    asked, expected = NOTATIONS[name]
    parsed = CITY.parse(asked)
    assert parsed.grid.tolist() == NUMBERS
    assert CITY.write(np.array(ANSWER_NUMBERS, dtype=np.int8), parsed.notation) == expected


@pytest.mark.parametrize("name", NOTATIONS)
def test_answer_can_be_read_back(name: str) -> None:
    assert CITY.parse(NOTATIONS[name][1]).grid.tolist() == ANSWER_NUMBERS


def test_puzzle_with_several_cheapest_tours_is_accepted() -> None:
    assert CITY.parse("D....." + "......" * 3 + ".....C").grid[4, 5] == 6


REFUSALS: dict[str, tuple[object, str, tuple[int, int] | None]] = {
    "nothing at all": (None, "not-a-puzzle", None),
    "short line": ("D...C\n" + "\n".join(LINES[1:]), "wrong-size", (1, 1)),
    "missing line": ("\n".join(LINES[:4]), "wrong-size", None),
    "space": ("\n".join(LINES).replace(".", " "), "bad-character", (1, 2)),
    "strange number": ([[5, 3, 2, 6, 0, 1], *NUMBERS[1:]], "bad-character", (1, 2)),
    "no depot": ("\n".join(LINES).replace("D", "."), "no-depot", None),
    "two depots": ("\n".join(LINES).replace("D.", "DD"), "many-depots", (1, 2)),
    "no customer": ("\n".join(LINES).replace("C", "."), "no-customers", None),
    "nine customers": ("DCCCCCCCCC" + "." * 20, "too-many-customers", (2, 4)),
    "customer out of reach": ("D.....####.......C" + "######" + "C.....", "unreachable-customer", (5, 1)),
    "half a tour": ("\n".join(ANSWER).replace("t", "2"), "wrong-marks", None),
    "no customers key": ({"grid": COSTS, "depot": [0, 0]}, "wrong-keys", None),
    "strange key": ({**OBJECT, "trucks": 2}, "wrong-keys", None),
    "cost of three": ({**OBJECT, "grid": [[1, 3, 1, 1, 1, 1], *COSTS[1:]]}, "bad-character", (1, 2)),
    "depot outside": ({**OBJECT, "depot": [0, 6]}, "bad-cell", None),
    "depot in a building": ({**OBJECT, "depot": [0, 4]}, "in-building", (1, 5)),
    "customer in a building": ({**OBJECT, "customers": [[1, 2]]}, "in-building", (2, 3)),
    "customer at the depot": ({**OBJECT, "customers": [[0, 0]]}, "same-cell", (1, 1)),
    "customer twice": ({**OBJECT, "customers": [[0, 3], [0, 3]]}, "same-cell", (1, 4)),
    "customers that are no cells": ({**OBJECT, "customers": 3}, "bad-cell", None),
    "endless customers": ({**OBJECT, "customers": [[0, 0]] * 31}, "bad-cell", None),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_rule_and_the_cell(name: str) -> None:
    notation, rule, cell = REFUSALS[name]
    error = refusal(notation)
    assert (error.rule, error.cell) == (rule, cell)
    assert re.fullmatch(r".{20,260}\.", str(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_message_says_value_expectation_and_remedy() -> None:
    assert str(refusal("D.....####.......C" + "######" + "C.....")) == (
        "no way leads from the depot to the customer at row 5, column 1; connect it by a road or leave it out."
    )


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(alphabet="#.24DCo\n", max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(st.sampled_from(["grid", "depot", "customers", "tour"]), inner)
    ),
    max_leaves=12,
)


@given(notation=values)
@settings(deadline=None, max_examples=40)
def test_whatever_is_sent_is_read_or_refused(notation: object) -> None:
    with suppress(PuzzleError):
        assert CITY.parse(notation).grid.shape == (5, 6)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=10)
def test_generated_cities_survive_every_notation(seed: int) -> None:
    example = CITY.generate(np.random.default_rng(seed), "medium")
    lines = ["".join("#.2_4DC"[value] for value in row) for row in example.question.tolist()]
    costs = np.where(example.question > 4, 1, example.question).tolist()
    depot, *customers = np.argwhere(example.question == 5).tolist() + np.argwhere(example.question == 6).tolist()
    apart = {"grid": costs, "depot": depot, "customers": customers}
    for notation in ("\n".join(lines), lines, [list(line) for line in lines], example.question.tolist(), apart):
        parsed = CITY.parse(notation)
        assert (parsed.grid == example.question).all()
        assert (CITY.parse(CITY.write(example.answer, parsed.notation)).grid == example.answer).all()
