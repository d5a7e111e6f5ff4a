"""Generated cities have exactly one cheapest tour.

An independent search over cells and seen customers agrees.
"""

from heapq import heappop, heappush

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.logistics_generator import num_customers
from hrm_puzzles.puzzle import RIGHT, Grid

CITIES = [
    registry.get("logistics-6x6"),
    Logistics(name="logistics-7x9", rows=7, cols=9),
    registry.get("logistics"),
]
DIFFICULTIES = ["easy", "medium", "hard"]
DEPOT = 5
CUSTOMER = 6

State = tuple[int, int]  # a cell, and the seen customers as bits


class Search:
    """Dijkstra over states from the depot, with every predecessor on a cheapest way."""

    def __init__(self, question: Grid) -> None:
        self.rows, self.cols = question.shape
        values = [int(value) for value in question.reshape(-1)]
        self.cost = [1 if value >= DEPOT else value for value in values]
        customers = [cell for cell, value in enumerate(values) if value == CUSTOMER]
        self.bit_of_customer = {cell: 1 << index for index, cell in enumerate(customers)}
        self.depot = values.index(DEPOT)
        self.near = [self.roads_beside(cell) for cell in range(len(values))]
        self.start: State = (self.depot, 0)
        self.end: State = (self.depot, (1 << len(customers)) - 1)
        self.best: dict[State, int] = {self.start: 0}
        self.before: dict[State, list[State]] = {}
        self.run()

    def roads_beside(self, cell: int) -> list[int]:
        row, col = divmod(cell, self.cols)
        roads: list[int] = []
        for r, c in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
            near = r * self.cols + c
            if 0 <= r < self.rows and 0 <= c < self.cols and self.cost[near]:
                roads.append(near)
        return roads

    def run(self) -> None:
        waiting = [(0, self.start)]
        while waiting:
            paid, state = heappop(waiting)
            if paid > self.best[state]:
                continue
            if state == self.end:
                return
            cell, seen = state
            for near in self.near[cell]:
                after = (near, seen | self.bit_of_customer.get(near, 0))
                total = paid + self.cost[near]
                known = self.best.get(after)
                if known is None or total < known:
                    self.best[after] = total
                    self.before[after] = [state]
                    heappush(waiting, (total, after))
                elif total == known:
                    self.before[after].append(state)

    def cell_sets(self) -> set[frozenset[int]]:
        """The cells of each cheapest tour, found by walking all of them back."""
        found: set[frozenset[int]] = set()
        waiting = [(self.end, frozenset([self.depot]))]
        met = set(waiting)
        while waiting:
            state, cells = waiting.pop()
            if state == self.start:
                found.add(cells)
            for before in self.before.get(state, []):
                step = (before, cells | {before[0]})
                if step not in met:
                    met.add(step)
                    waiting.append(step)
        return found


def check_many(city: Logistics, difficulty: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        example = city.generate(rng, difficulty)
        search = Search(example.question)
        assert search.best[search.end] == example.rating
        marked = np.flatnonzero(example.answer.reshape(-1) >= DEPOT).tolist()
        assert search.cell_sets() == {frozenset(marked)}
        is_marked_road = example.answer > CUSTOMER
        bare = np.where(is_marked_road, example.answer - 10, example.answer)
        assert (bare == example.question).all()
        customers = int((example.question == CUSTOMER).sum())
        assert customers in num_customers(city.shape, difficulty)
        inputs_1T = city.encode(example.question)[None]
        labels_1T = city.encode(example.answer)[None]
        assert city.check_BT(inputs_1T, labels_1T).tolist() == [RIGHT]


@pytest.mark.parametrize("city", CITIES, ids=lambda city: city.name)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_label_is_the_only_cheapest_tour(city: Logistics, difficulty: str) -> None:
    check_many(city, difficulty, count=6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("city", [CITIES[0], CITIES[2]], ids=lambda city: city.name)
def test_ten_thousand_labels_are_the_only_cheapest_tour(city: Logistics, difficulty: str) -> None:
    check_many(city, difficulty, count=3334, seed=2)
