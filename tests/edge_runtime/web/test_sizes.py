"""Boards that are smaller than those of the models: pasted, solved, and linked."""

from collections.abc import Iterator

import numpy as np
import pytest
from service_tools import Server, command
from visit_tools import SIZES, visit
from web_tools import Browser, expect, paste, solve

from hrm_puzzles import registry

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def mazes(browser: Browser) -> Iterator[Server]:
    del browser
    with Server(command("serve", "maze-8x8", "maze-14x14", "--threads=1")) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.parametrize("size", [(12, 12), (9, 13)])
def test_a_smaller_maze_is_solved_on_the_page_and_from_its_link(
    browser: Browser, mazes: Server, size: tuple[int, int]
) -> None:
    rows, cols = size
    puzzle = registry.get(f"maze-{rows}x{cols}")
    question = str(puzzle.asked(puzzle.generate(np.random.default_rng(4), "medium").question, ""))
    with visit(browser, mazes, SIZES[0]) as page:
        paste(page, question)
        expect(page.locator("#model")).to_have_value("maze-14x14")
        expect(page.locator("#board [role=row]")).to_have_count(rows)
        expect(page.locator("#board [role=gridcell]")).to_have_count(rows * cols)
        assert solve(page) == "Proven"
        assert page.input_value("#text").strip() == question
        link = page.evaluate("location.href")
    with visit(browser, mazes, SIZES[0]) as page:
        page.goto(link)
        expect(page.locator("#board [role=gridcell]")).to_have_count(rows * cols)
        assert solve(page) == "Proven"


def test_boards_that_a_model_holds_are_not_drawn_only(browser: Browser, mazes: Server) -> None:
    with visit(browser, mazes, SIZES[0]) as page:
        names = page.locator("#model option").evaluate_all("all => all.map(one => one.value)")
        assert "maze-10x10" not in names
        assert "maze" in names
