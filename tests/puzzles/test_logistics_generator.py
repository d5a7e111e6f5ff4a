"""Generated cities have exactly one cheapest tour; a search of another kind, over cells and customers seen, agrees."""

from heapq import heappop, heappush

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.logistics_generator import num_customers
from hrm_puzzles.puzzle import RIGHT, Grid

CITIES = [registry.get("logistics-6x6"), Logistics(name="logistics-7x9", rows=7, cols=9), registry.get("logistics")]
DIFFICULTIES = ["easy", "medium", "hard"]
DEPOT, CUSTOMER = 5, 6


class Search:
    """Dijkstra over states (cell, customers seen) from the depot, with every predecessor on a cheapest way kept."""

    def __init__(self, question: Grid) -> None:
        rows, cols = question.shape
        flat = [int(value) for value in question.reshape(-1)]
        self.cost = [1 if value >= DEPOT else value for value in flat]
        customers = [cell for cell, value in enumerate(flat) if value == CUSTOMER]
        self.seen_at = {cell: 1 << index for index, cell in enumerate(customers)}
        self.depot = flat.index(DEPOT)
        self.near = [self.roads_beside(*divmod(cell, cols), rows, cols) for cell in range(rows * cols)]
        self.end = (self.depot, (1 << len(customers)) - 1)
        self.best: dict[tuple[int, int], int] = {}
        self.before: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.run()

    def roads_beside(self, row: int, col: int, rows: int, cols: int) -> list[int]:
        places = [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]
        inside = [r * cols + c for r, c in places if 0 <= r < rows and 0 <= c < cols]
        return [cell for cell in inside if self.cost[cell]]

    def run(self) -> None:
        start = (self.depot, 0)
        self.best[start] = 0
        waiting = [(0, start)]
        while waiting:
            paid, state = heappop(waiting)
            if paid > self.best[state]:
                continue
            if state == self.end:
                return
            for near in self.near[state[0]]:
                after, total = (near, state[1] | self.seen_at.get(near, 0)), paid + self.cost[near]
                known = self.best.get(after)
                if known is None or total < known:
                    self.best[after], self.before[after] = total, [state]
                    heappush(waiting, (total, after))
                elif total == known:
                    self.before[after].append(state)

    def cell_sets(self) -> set[frozenset[int]]:
        """The cells of each of the cheapest tours, by walking all of them back."""
        found: set[frozenset[int]] = set()
        waiting = [(self.end, frozenset([self.depot]))]
        met = set(waiting)
        while waiting:
            state, cells = waiting.pop()
            if state == (self.depot, 0):
                found.add(cells)
            for before in self.before.get(state, []):
                step = before, cells | {before[0]}
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
        assert search.cell_sets() == {frozenset(np.flatnonzero(example.answer.reshape(-1) >= DEPOT).tolist())}
        assert (np.where(example.answer > CUSTOMER, example.answer - 10, example.answer) == example.question).all()
        assert int((example.question == CUSTOMER).sum()) in num_customers(city.shape, difficulty)
        tokens = city.encode(example.question)[None], city.encode(example.answer)[None]
        assert city.check_BT(*tokens).tolist() == [RIGHT]


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


def test_search_finds_the_ties_of_an_empty_city() -> None:
    question = np.ones((5, 5), dtype=np.int8)
    question[0, 0], question[1, 1] = DEPOT, CUSTOMER
    assert Search(question).cell_sets() == {frozenset({0, 1, 6}), frozenset({0, 5, 6}), frozenset({0, 1, 5, 6})}


def test_all_roads_of_a_generated_city_hang_together() -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        question = CITIES[2].generate(rng, "hard").question.reshape(-1)
        search = Search(question.reshape(10, 10))
        reached, waiting = {search.depot}, [search.depot]
        while waiting:
            fresh = set(search.near[waiting.pop()]) - reached
            reached |= fresh
            waiting += fresh
        assert reached == set(np.flatnonzero(question).tolist())
