"""City tokens, the check, symmetries and the curriculum; what is right is found again by a search of another kind."""

import tracemalloc
from itertools import compress, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.puzzle import RIGHT, WRONG, Grid, PuzzleError

CITY = registry.get("logistics")
SMALL = Logistics(name="logistics-5x5", rows=5, cols=5)
seeds = st.integers(min_value=0, max_value=2**32 - 1)

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
    """A grid without looking at what its marks mean."""
    values = {"#": 0, ".": 1, "2": 2, "4": 4, "D": 5, "C": 6, "o": 11, "t": 12, "f": 14}
    cells = [values[character] for character in text if character != "\n"]
    return np.array(cells, dtype=np.int8).reshape(city.rows, city.cols)


def verdict(city: Logistics, question: Grid, answer: Grid) -> int:
    return int(city.check_BT(city.encode(question)[None], city.encode(answer)[None])[0])


def cheapest_tour(grid: Grid, roads: frozenset[tuple[int, int]]) -> int | None:
    """Cost of the cheapest closed tour on the stops and these roads, by relaxing (cell, customers seen) to the end."""
    stops = {tuple(cell) for cell in np.argwhere((grid == 5) | (grid == 6)).tolist()}
    bits = {tuple(cell): 1 << index for index, cell in enumerate(np.argwhere(grid == 6).tolist())}
    depot = tuple(np.argwhere(grid == 5)[0].tolist())
    cost = {cell: 1 if cell in stops else int(grid[cell]) for cell in stops | roads}
    best, waiting = {(depot, 0): 0}, [(depot, 0)]
    while waiting:
        cell, seen = waiting.pop(0)
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            near = cell[0] + down, cell[1] + right
            if near in cost:
                state, paid = (near, seen | bits.get(near, 0)), best[cell, seen] + cost[near]
                if paid < best.get(state, 10**6):
                    best[state] = paid
                    waiting.append(state)
    return best.get((depot, (1 << len(bits)) - 1))


def test_tokens_tell_the_cost_of_every_road_on_the_tour_and_off_it() -> None:
    assert (CITY.vocab_size, CITY.seq_len, CITY.num_puzzle_ids) == (10, 100, 1)
    grid = board(SMALL, "#.24DCotf" + "." * 16)
    assert SMALL.encode(grid)[:9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (SMALL.decode(SMALL.encode(grid)) == grid).all()


def test_tokens_that_stand_for_nothing_decode_to_roads() -> None:
    assert SMALL.decode(np.resize([0, 1, 10, 10**6, -5], 25)).reshape(-1)[:5].tolist() == [1, 0, 1, 1, 1]


def test_cities_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="choose sides from 5 to 30"):
        Logistics(name="logistics", rows=4, cols=9)


def test_congestion_decides_which_way_is_cheapest() -> None:
    short, long = "DoooC.###..###..###......", "D...Co###oo###oo###oooooo"
    assert [verdict(SMALL, board(SMALL, TWO_WAYS), board(SMALL, text)) for text in (short, long)] == [RIGHT, WRONG]
    short, long = "DofoC.###..###..###......", "D.4.Co###oo###oo###oooooo"
    assert [verdict(SMALL, board(SMALL, CONGESTED), board(SMALL, text)) for text in (short, long)] == [RIGHT, WRONG]


def test_any_cheapest_tour_is_right_and_both_together_are_wrong() -> None:
    question = board(SMALL, "D....\n.###.\n.###.\n.###.\n....C")
    answers = [
        "Doooo.###o.###o.###o....C",
        "D....o###.o###.o###.ooooC",
        "Doooo.###o.###oo###oooooC",
        "Dooooo###oo###oo###oooooC",
    ]
    assert [verdict(SMALL, question, board(SMALL, text)) for text in answers] == [RIGHT, RIGHT, WRONG, WRONG]


def test_customer_at_the_end_of_a_lane_is_reached_and_left_by_the_same_roads() -> None:
    question = board(SMALL, "D.C.C\n#####\n.....\n.....\n.....")
    assert verdict(SMALL, question, board(SMALL, "DoCoC##########\n" + "." * 10)) == WRONG  # buildings for roads
    assert verdict(SMALL, question, board(SMALL, "DoCoC#####...............")) == RIGHT
    assert verdict(SMALL, question, board(SMALL, "DoC.C#####...............")) == WRONG


@given(seed=seeds)
@settings(deadline=None, max_examples=4)
def test_of_all_sets_of_marks_just_the_smallest_that_hold_a_cheapest_tour_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = board(SMALL, "......#.#......##########")  # two blocks with streets all around
    grid[grid == 1] = rng.permutation([5, 6, 6, *rng.choice([1, 1, 1, 2], 10)])
    roads = [tuple(cell) for cell in np.argwhere((grid > 0) & (grid < 5)).tolist()]
    sets = [frozenset(compress(roads, chosen)) for chosen in product((False, True), repeat=len(roads))]
    best = cheapest_tour(grid, frozenset(roads))
    good = {some for some in sets if cheapest_tour(grid, some) == best}
    smallest = {some for some in good if not any(some - {road} in good for road in some)}
    answers = np.repeat(SMALL.encode(grid)[None], len(sets), axis=0)
    for answer_T, some in zip(answers, sets, strict=True):
        answer_T[[row * 5 + col for row, col in some]] += 5
    verdict_B = SMALL.check_BT(np.resize(SMALL.encode(grid), answers.shape), answers)
    assert set(compress(sets, verdict_B == RIGHT)) == smallest


def test_all_roads_marked_or_none_is_wrong() -> None:
    rng = np.random.default_rng(4)
    inputs_BT = np.stack([CITY.encode(CITY.generate(rng, "easy").question) for _ in range(6)])
    is_road_BT = (inputs_BT > 1) & (inputs_BT < 5)
    assert (CITY.check_BT(inputs_BT, np.where(is_road_BT, inputs_BT + 5, inputs_BT)) == WRONG).all()
    far_B = [cheapest_tour(CITY.decode(tokens_T), frozenset()) is None for tokens_T in inputs_BT]
    assert (CITY.check_BT(inputs_BT, inputs_BT)[far_B] == WRONG).all()


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
    with pytest.raises(PuzzleError, match="no cheapest tour"):
        city.parse("\n".join("".join(row) for row in rows))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**20
