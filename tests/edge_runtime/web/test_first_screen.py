"""The first screen: the board, Solve, the verdict and the curve are visible together."""

import pytest
from service_tools import Server
from visit_tools import LAPTOPS, PHONE, visit
from web_tools import Browser, Page, choose, expect, screen, solve, verdict

pytestmark = pytest.mark.process


MODELS = ["sudoku", "maze-8x8", "logistics-6x6", "arc-7x7"]

BOXES = """names => names.map(name => {
    const box = document.querySelector(name).getBoundingClientRect();
    return {name, top: box.top, bottom: box.bottom, left: box.left, right: box.right};
})"""


# A curve needs at least two segments.
THREE_SEGMENTS = """() => {
    document.querySelector("#segments-wanted").value = "3";
    document.querySelector("#policy").value = "fixed";
}"""


def sees(page: Page, *names: str) -> list[dict[str, float]]:
    """The boxes of these elements, all of them inside the window."""
    found = page.evaluate(BOXES, list(names))
    for box in found:
        assert 0 <= box["top"] < box["bottom"] <= page.evaluate("innerHeight"), box
    return found


def open_model(page: Page, model: str) -> None:
    choose(page, model)
    if model == "arc-7x7":
        expect(page.locator(".demonstration").first).to_be_visible()


@pytest.mark.parametrize("size", LAPTOPS)
@pytest.mark.parametrize("model", MODELS)
def test_laptop_shows_board_solve_verdict_and_result_without_scrolling(
    browser: Browser, site: Server, model: str, size: tuple[int, int]
) -> None:
    result = "#answer-board .picture" if model == "arc-7x7" else "#curve"
    with visit(browser, site, size) as page:
        open_model(page, model)
        page.evaluate(THREE_SEGMENTS)
        solve(page)
        assert page.evaluate("scrollY") == 0
        sees(page, "#board .picture", "#solve", "#verdict", result)
        if model == "sudoku":
            screen(page, f"first-{size[0]}", whole=False)


def test_phone_shows_board_solve_and_verdict_one_below_the_other(
    browser: Browser, site: Server
) -> None:
    with visit(browser, site, PHONE) as page:
        open_model(page, "sudoku")
        page.tap("#solve")
        verdict(page)
        board, button, verdict_box = sees(page, "#board .picture", "#solve", "#verdict")
        assert board["bottom"] <= button["top"]
        assert button["bottom"] <= verdict_box["top"]
        screen(page, f"first-{PHONE[0]}", whole=False)
