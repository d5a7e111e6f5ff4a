"""Cities: the check, and one cheapest tour in each. An independent search agrees."""

import tracemalloc
from collections.abc import Sequence
from itertools import chain, pairwise, permutations, product, starmap
from math import inf

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puzzle_tools import Cell, cells_where, subsets

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.logistics_generator import num_customers
from hrm_puzzles.puzzle import RIGHT, Grid, PuzzleError

SMALL = Logistics(name="logistics-5x5", rows=5, cols=5)
DEPOT = 5
CUSTOMER = 6
CITIES = [
    registry.get("logistics-6x6"),
    Logistics(name="logistics-7x9", rows=7, cols=9),
    registry.get("logistics"),
]
DIFFICULTIES = ["easy", "medium", "hard"]
seeds = st.integers(min_value=0, max_value=2**32 - 1)


class Search:
    """Every order of the customers, over the cheapest ways between two stops."""

    def __init__(self, question: Grid) -> None:
        self.roads = nx.grid_2d_graph(*question.shape, create_using=nx.DiGraph)
        self.roads.remove_nodes_from(cells_where(question == 0))
        for _, cell, edge in self.roads.edges(data=True):
            edge["cost"] = 1 if question[cell] >= DEPOT else int(question[cell])
        self.costs = dict(nx.all_pairs_dijkstra_path_length(self.roads, weight="cost"))
        (depot,) = cells_where(question == DEPOT)
        orders = permutations(cells_where(question == CUSTOMER))
        self.tours = [(depot, *order, depot) for order in orders]
        self.best = min(map(self.cost_of, self.tours))

    def cost_of(self, tour: Sequence[Cell]) -> float:
        return sum(self.costs[start].get(end, inf) for start, end in pairwise(tour))

    def cell_sets(self) -> set[frozenset[Cell]]:
        """The cells of each cheapest tour."""
        found = set()
        for tour in self.tours:
            if self.cost_of(tour) == self.best:
                ways = starmap(self.cheapest_ways, pairwise(tour))
                found.update(frozenset(chain(*way)) for way in product(*ways))
        return found

    def cheapest_ways(self, start: Cell, end: Cell) -> list[list[Cell]]:
        return list(nx.all_shortest_paths(self.roads, start, end, weight="cost"))


def cheapest_on(grid: Grid, roads: frozenset[Cell]) -> float:
    """Cost of the cheapest tour if all other roads are buildings."""
    closed = (grid > 0) & (grid < DEPOT)
    for cell in roads:
        closed[cell] = False
    return Search(np.where(closed, 0, grid)).best


@given(seed=seeds)
@settings(max_examples=4)
def test_only_the_smallest_sets_of_marks_with_a_cheapest_tour_are_right(seed: int):
    rng = np.random.default_rng(seed)
    grid = SMALL.board_of("......#.#......##########")  # two blocks with streets all around
    streets = [DEPOT, CUSTOMER, CUSTOMER, *rng.choice([1, 1, 1, 2], 10)]
    grid[grid == 1] = rng.permutation(streets)
    roads = cells_where((grid > 0) & (grid < DEPOT))
    sets = subsets(roads)
    best = cheapest_on(grid, frozenset(roads))
    good = {marks for marks in sets if cheapest_on(grid, marks) == best}
    smallest = set()
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


@pytest.mark.parametrize("mark", ["o", "t", "f"])
def test_a_large_city_with_every_road_marked_is_judged_in_little_memory(mark: str):
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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [6, pytest.param(3334, marks=pytest.mark.slow)])
@pytest.mark.parametrize("city", CITIES, ids=lambda city: city.name)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_label_is_the_only_cheapest_tour(city: Logistics, difficulty: str, count: int):
    rng = np.random.default_rng(count)
    for _ in range(count):
        example = city.generate(rng, difficulty)
        search = Search(example.question)
        assert search.best == example.rating
        assert search.cell_sets() == {frozenset(cells_where(example.answer >= DEPOT))}
        is_marked_road = example.answer > CUSTOMER
        bare = np.where(is_marked_road, example.answer - 10, example.answer)
        assert (bare == example.question).all()
        customers = int((example.question == CUSTOMER).sum())
        assert customers in num_customers(city.shape, difficulty)
        assert np.array_equal(city.label_of(example.question), example.answer)


@given(seeds)
@settings(max_examples=30)
def test_a_label_is_right_even_if_many_tours_are_cheapest(seed: int):
    """Open squares full of equal roads: tours tie, and some leave spare roads behind."""
    rng = np.random.default_rng(seed)
    question = np.where(rng.random((5, 5)) < 0.1, 0, 1).astype(np.int8)
    cells = rng.permutation(25)[: rng.integers(2, 8)]
    question.reshape(-1)[cells] = CUSTOMER
    question.reshape(-1)[cells[0]] = DEPOT
    try:
        label = SMALL.label_of(question)
    except PuzzleError as error:
        if error.rule != "unreachable-customer":
            raise
        return
    inputs_1T = SMALL.encode(question)[None]
    assert SMALL.check_BT(inputs_1T, SMALL.encode(label)[None])[0] == RIGHT
