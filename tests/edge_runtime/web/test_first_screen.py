"""The first screen: the board, Solve, the verdict and the curve are visible together."""

import json

import pytest
from service_tools import Server
from visit_tools import LAPTOPS, PHONE, visit
from web_tools import Browser, Page, choose, expect, paste, screen, solve, verdict

pytestmark = pytest.mark.process

TASK = {
    "task": "shift-colours",
    "train": [{"input": [[1, 0], [0, 2]], "output": [[5, 4], [4, 6]]}] * 3,
    "test": [{"input": [[0, 7, 7, 1], [7, 7, 7, 2], [0, 7, 7, 3], [4, 5, 6, 8]]}],
}

BOXES = """names => names.map(name => {
    const box = document.querySelector(name).getBoundingClientRect();
    return {name, top: box.top, bottom: box.bottom, left: box.left, right: box.right};
})"""

# A curve needs at least two segments.
THREE_SEGMENTS = """() => {
    document.querySelector("#segments-wanted").value = "3";
    document.querySelector("#policy").value = "fixed";
}"""

Box = dict[str, float]


def boxes(page: Page, *names: str) -> list[Box]:
    return page.evaluate(BOXES, list(names))


def outside(found: list[Box], height: int) -> list[Box]:
    return [box for box in found if box["top"] < 0 or box["bottom"] > height]


@pytest.mark.parametrize("size", LAPTOPS)
@pytest.mark.parametrize("model", ["sudoku", "maze-8x8", "logistics-6x6", "arc-colours"])
def test_laptop_shows_board_solve_verdict_and_curve_without_scrolling(
    browser: Browser, site: Server, model: str, size: tuple[int, int]
) -> None:
    with visit(browser, site, size) as page:
        choose(page, model)
        if model == "arc-colours":
            paste(page, json.dumps(TASK))
        page.evaluate(THREE_SEGMENTS)
        solve(page)
        assert page.evaluate("scrollY") == 0
        found = boxes(page, "#board .picture", "#solve", "#verdict", "#curve")
        assert outside(found, size[1]) == []
        assert all(box["top"] < box["bottom"] for box in found)
        screen(page, f"first-{model}-{size[0]}", whole=False)


@pytest.mark.parametrize("size", LAPTOPS)
def test_laptop_shows_a_task_and_its_answer_without_scrolling(
    browser: Browser, site: Server, size: tuple[int, int]
) -> None:
    with visit(browser, site, size) as page:
        choose(page, "arc-7x7")
        expect(page.locator(".demonstration").first).to_be_visible()
        solve(page)
        assert page.evaluate("scrollY") == 0
        found = boxes(page, "#board .picture", "#solve", "#verdict", "#answer-board .picture")
        assert outside(found, size[1]) == []
        screen(page, f"first-arc-{size[0]}", whole=False)


@pytest.mark.parametrize("model", ["sudoku", "logistics-6x6"])
def test_phone_shows_board_and_verdict_and_covers_nothing(
    browser: Browser, site: Server, model: str
) -> None:
    with visit(browser, site, PHONE) as page:
        choose(page, model)
        page.tap("#solve")
        verdict(page)
        board, button, verdict_box = boxes(page, "#board .picture", "#solve", "#verdict")
        assert outside([board, button, verdict_box], PHONE[1]) == []
        assert board["bottom"] <= button["top"]
        assert button["bottom"] <= verdict_box["top"]
        screen(page, f"first-{model}-{PHONE[0]}", whole=False)


def test_phone_shows_the_answer_of_a_task_below_its_verdict(browser: Browser, site: Server) -> None:
    with visit(browser, site, PHONE) as page:
        choose(page, "arc-7x7")
        expect(page.locator(".demonstration").first).to_be_visible()
        page.tap("#solve")
        verdict(page)
        button, verdict_box, answer = boxes(page, "#solve", "#verdict", "#answer-board .picture")
        assert outside([button, verdict_box, answer], PHONE[1]) == []
        assert button["bottom"] <= verdict_box["top"]
        assert verdict_box["bottom"] <= answer["top"]
        screen(page, f"first-arc-{PHONE[0]}", whole=False)
