"""A best way with marks beside it is not proven, and the page shows which marks are too many."""

from dataclasses import asdict

import numpy as np
import pytest
from web_tools import Page

from hrm_puzzles import registry
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import RIGHT, Grid

pytestmark = pytest.mark.process

TOLD = """async ([name, asked, said, route]) => {
  const { kindOf } = await import("/web/js/kinds/index.js");
  const { verdictOf } = await import("/web/js/verdict.js");
  const { models } = await (await fetch("/models")).json();
  const kind = kindOf(models.find((model) => model.name === name));
  const answer = { status: "unfinished", verified: false, solution: said, route };
  const marks = kind.picture(asked, said, route).cells.map(({ text, label }) => [text, label]);
  const crossed = marks.flatMap(([text], cell) => (text === "✗" ? [cell] : []));
  return { verdict: verdictOf(answer, kind), crossed };
}"""
CITY = "DoooC." + ".####." + "oo...." + "######" * 3
MAZE = "SooG####" + "o#######" + "########" * 6


def board(puzzle: GridPuzzle, text: str) -> Grid:
    values = [puzzle.legend.values[character] for character in text]
    return np.array(values, dtype=np.int8).reshape(puzzle.rows, puzzle.cols)


@pytest.mark.parametrize(
    ("name", "answer", "spare"),
    [("logistics-6x6", CITY, [(2, 0), (2, 1)]), ("maze-8x8", MAZE, [(1, 0)])],
)
def test_marks_beside_the_best_way_are_crossed_out_and_named(
    page: Page, name: str, answer: str, spare: list[tuple[int, int]]
) -> None:
    puzzle = registry.get(name)
    assert isinstance(puzzle, GridPuzzle)
    said = board(puzzle, answer)
    asked = puzzle.decode(puzzle.bare(puzzle.encode(said)))
    route = puzzle.route(asked, said)
    assert route.cost == route.optimum
    verdict = puzzle.check_BT(puzzle.encode(asked)[None], puzzle.encode(said)[None])[0]
    assert verdict != RIGHT
    told = page.evaluate(TOLD, [name, asked.tolist(), said.tolist(), asdict(route)])
    assert told["crossed"] == [row * said.shape[1] + col for row, col in spare]
    assert told["verdict"]["title"] == "Not proven"
    for row, col in spare:
        assert f"row {row + 1}, column {col + 1}" in told["verdict"]["text"]
