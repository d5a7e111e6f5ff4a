"""The route that an answer marks: its legs and cost beside the optimum, for any answer."""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.logistics_generator import CUSTOMER
from hrm_puzzles.puzzle import Leg, Puzzle, Route

PUZZLES = [registry.get(name) for name in ("maze-8x8", "maze-10x10", "logistics-6x6", "logistics")]
each = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
MAZE = """\
#...#.#.
#.###.#S
#ooooooo
#o###.##
#G#...#.
#.#####.
#.......
########"""
CITY = """\
#.##42
#2##2#
#CfDo4
#o##o#
#o##o#
#ofCo."""
SPARE = """\
#.##42
#2##t#
#CfDof
#o##o#
#o##o#
#ofCoo"""
WITHOUT_MARKS = str.maketrans("otf", ".24")


def route(puzzle: Puzzle, answer: str) -> Route:
    question = puzzle.board_of(answer.translate(WITHOUT_MARKS))
    return puzzle.route(question, puzzle.board_of(answer))


def test_a_route_has_a_leg_to_each_stop_whatever_marks_are_spare():
    found = route(registry.get("maze-8x8"), MAZE)
    assert (found.start, found.cost, found.optimum) == ((1, 7), 9, 9)
    along = [(2, col) for col in range(7, 0, -1)]
    assert found.legs[0].cells == [*along, (3, 1), (4, 1)]
    found = route(registry.get("logistics-6x6"), CITY)
    assert (found.start, found.cost, found.optimum) == ((2, 3), 18, 18)
    first, second, last = found.legs
    assert (first.to, first.cost) == ((5, 3), 5)
    assert (second.to, second.cost) == ((2, 1), 8)
    assert last == Leg(to=(2, 3), cost=5, cells=[(2, 2), (2, 3)])
    city = registry.get("logistics-6x6")
    assert route(city, SPARE) == route(city, CITY)
    nowhere = Route(start=(2, 3), legs=[], cost=None, optimum=18)
    assert route(city, CITY.replace("o", ".")) == nowhere


@each
def test_answers_have_a_route_or_none_and_labels_cost_their_rating(puzzle: Puzzle):
    for seed in range(12):
        example = puzzle.generate(np.random.default_rng(seed), "medium")
        found = puzzle.route(example.question, example.answer)
        assert found.cost == found.optimum == example.rating
        assert found.cost == sum(leg.cost for leg in found.legs)
        stops = np.argwhere(example.question == CUSTOMER).tolist()
        if stops:
            *visits, back = [leg.to for leg in found.legs]
            assert sorted(map(list, visits)) == stops
            assert back == found.start
    rng = np.random.default_rng(1)
    for _ in range(20):
        question = puzzle.generate(rng, "easy").question
        tokens_T = rng.integers(0, puzzle.vocab_size + 1, puzzle.seq_len)
        found = puzzle.route(question, puzzle.decode(tokens_T))
        assert found.cost is None or found.cost >= found.optimum
