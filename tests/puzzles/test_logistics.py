"""City tokens and the check. An independent search finds what is right."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.puzzle import RIGHT, WRONG, Grid, PuzzleError

SMALL = Logistics(name="logistics-5x5", rows=5, cols=5)
DEPOT = 5
CUSTOMER = 6
VALUES = {"#": 0, ".": 1, "2": 2, "4": 4, "D": DEPOT, "C": CUSTOMER, "o": 11, "t": 12, "f": 14}
NEIGHBOURS = ((1, 0), (-1, 0), (0, 1), (0, -1))
seeds = st.integers(min_value=0, max_value=2**32 - 1)

Cell = tuple[int, int]

TWO_WAYS = """\
D...C
.###.
.###.
.###.
....."""
CONGESTED = """\
D.4.C
.###.
.###.
.###.
....."""


def board(city: Logistics, text: str) -> Grid:
    """Read a grid without judging its marks."""
    cells = [VALUES[character] for character in text.replace("\n", "")]
    return np.array(cells, dtype=np.int8).reshape(city.rows, city.cols)


def verdict(question: Grid, text: str) -> int:
    """The verdict of an answer on a small board."""
    inputs_1T = SMALL.encode(question)[None]
    answers_1T = SMALL.encode(board(SMALL, text))[None]
    return int(SMALL.check_BT(inputs_1T, answers_1T)[0])


def cells_with(is_set: np.typing.NDArray[np.bool_]) -> list[Cell]:
    rows, cols = np.nonzero(is_set)
    return list(zip(rows.tolist(), cols.tolist(), strict=True))


def cheapest_tour(grid: Grid, roads: frozenset[Cell]) -> int | None:
    """Cost of the cheapest closed tour on the stops and these roads.

    It relaxes states (cell, seen customers as bits) until nothing changes.
    """
    (depot,) = cells_with(grid == DEPOT)
    customers = cells_with(grid == CUSTOMER)
    bits = {cell: 1 << index for index, cell in enumerate(customers)}
    cost = {cell: int(grid[cell]) for cell in roads}
    cost.update(dict.fromkeys([depot, *customers], 1))
    best = {(depot, 0): 0}
    waiting = [(depot, 0)]
    while waiting:
        cell, seen = waiting.pop(0)
        for down, right in NEIGHBOURS:
            near = (cell[0] + down, cell[1] + right)
            if near not in cost:
                continue
            state = (near, seen | bits.get(near, 0))
            paid = best[cell, seen] + cost[near]
            if state not in best or paid < best[state]:
                best[state] = paid
                waiting.append(state)
    return best.get((depot, (1 << len(bits)) - 1))


def test_tokens_show_the_cost_of_every_road_on_the_tour_and_off_it() -> None:
    city = registry.get("logistics")
    assert (city.vocab_size, city.seq_len, city.num_puzzle_ids) == (10, 100, 1)
    grid = board(SMALL, "#.24DCotf" + "." * 16)
    tokens_T = SMALL.encode(grid)
    assert tokens_T[:9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (SMALL.decode(tokens_T) == grid).all()


def test_tokens_without_a_value_decode_to_roads() -> None:
    tokens_T = np.resize([0, 1, 10, 10**6, -5], 25)
    assert SMALL.decode(tokens_T).reshape(-1)[:5].tolist() == [1, 0, 1, 1, 1]


def test_congestion_decides_which_way_is_cheapest() -> None:
    free = board(SMALL, TWO_WAYS)
    assert verdict(free, "DoooC.###..###..###......") == RIGHT
    assert verdict(free, "D...Co###oo###oo###oooooo") == WRONG
    congested = board(SMALL, CONGESTED)
    assert verdict(congested, "DofoC.###..###..###......") == RIGHT
    assert verdict(congested, "D.4.Co###oo###oo###oooooo") == WRONG


def subsets(cells: list[Cell]) -> list[frozenset[Cell]]:
    found: list[frozenset[Cell]] = []
    for size in range(len(cells) + 1):
        found.extend(map(frozenset, combinations(cells, size)))
    return found


@given(seed=seeds)
@settings(deadline=None, max_examples=4)
def test_only_the_smallest_sets_of_marks_with_a_cheapest_tour_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = board(SMALL, "......#.#......##########")  # two blocks with streets all around
    streets = [DEPOT, CUSTOMER, CUSTOMER, *rng.choice([1, 1, 1, 2], 10)]
    grid[grid == 1] = rng.permutation(streets)
    roads = cells_with((grid > 0) & (grid < DEPOT))
    sets = subsets(roads)
    best = cheapest_tour(grid, frozenset(roads))
    good = {marks for marks in sets if cheapest_tour(grid, marks) == best}
    smallest: set[frozenset[Cell]] = set()
    for marks in good:
        if not any(marks - {road} in good for road in marks):
            smallest.add(marks)
    inputs_BT = np.repeat(SMALL.encode(grid)[None], len(sets), axis=0)
    answers_BT = inputs_BT.copy()
    for answer_T, marks in zip(answers_BT, sets, strict=True):
        for row, col in marks:
            answer_T[row * 5 + col] += 5
    verdict_B = SMALL.check_BT(inputs_BT, answers_BT)
    right = {sets[index] for index in np.flatnonzero(verdict_B == RIGHT).tolist()}
    assert right == smallest


def test_rendered_answer_shows_the_tour_and_crosses_out_what_is_broken() -> None:
    question = board(SMALL, CONGESTED)
    answer = board(SMALL, "DofoC.###..###..###.....#")
    lines = SMALL.render(answer, question).splitlines()
    assert lines[1] == "│D • 4•• C │"
    assert lines[5] == "│        ✗ │"


@pytest.mark.parametrize("mark", ["o", "t", "f"])
def test_a_large_city_with_every_road_marked_is_judged_in_little_memory(mark: str) -> None:
    """A question may hold marks too; closing each road in turn took 143 MiB and two seconds."""
    rows = [[mark] * 30 for _ in range(30)]
    stops = [(0, 0), (0, 29), (29, 0), (29, 29), (15, 15), (1, 15), (15, 1), (28, 28), (10, 10)]
    for (row, col), stop in zip(stops, "DCCCCCCCC", strict=True):
        rows[row][col] = stop
    city = registry.get("logistics-30x30")
    tracemalloc.start()
    with pytest.raises(PuzzleError, match="not a cheapest tour"):
        city.parse("\n".join("".join(row) for row in rows))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**20
