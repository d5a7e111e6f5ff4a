"""The first screen: the models to choose from, the board, Solve, the verdict and the curve."""

import pytest
from service_tools import Server
from web_tools import (
    LAPTOPS,
    PHONE,
    Browser,
    Page,
    Size,
    choose,
    expect,
    require_no_sideways_scroll,
    screen,
    solve,
    think_for,
    verdict,
    visit,
)

pytestmark = pytest.mark.process


MODELS = ["sudoku", "maze-8x8", "logistics-6x6", "arc-7x7"]

BOXES = """names => names.map(name => {
    const box = document.querySelector(name).getBoundingClientRect();
    return {name, top: box.top, bottom: box.bottom, left: box.left, right: box.right};
})"""


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
def test_laptop_needs_no_scrolling(browser: Browser, site: Server, size: Size):
    with visit(browser, site, size) as page:
        for model in MODELS:
            open_model(page, model)
            think_for(page, 3)
            solve(page)
            assert page.evaluate("scrollY") == 0
            result = "#answer-board .picture" if model == "arc-7x7" else "#curve"
            sees(page, "#board .picture", "#solve", "#verdict", result)
            if model == "sudoku":
                assert "3 of at most 3" in page.inner_text("#figures")
                screen(page, f"first-{size[0]}", whole=False)


def test_phone_shows_board_solve_and_verdict(browser: Browser, site: Server):
    """Solve is a bar at the bottom of the screen, which covers neither board nor verdict."""
    with visit(browser, site, PHONE) as page:
        for model in ("maze-8x8", "logistics-6x6", "arc-7x7", "sudoku"):
            open_model(page, model)
            page.evaluate("scrollTo(0, 0)")
            board, button = sees(page, "#board .picture", "#solve")
            assert board["bottom"] <= button["top"]
            page.tap("#solve")
            verdict(page)
            answer = "#answer-board" if model == "arc-7x7" else "#board"
            board, verdict_box, bar = sees(page, f"{answer} .picture", "#verdict", ".bar")
            assert bar["bottom"] == page.evaluate("innerHeight")
            assert max(board["bottom"], verdict_box["bottom"]) <= bar["top"]
        board, lead = page.evaluate(BOXES, ["#board .picture", ".lead"])
        assert board["bottom"] <= lead["top"]
        screen(page, f"first-{PHONE[0]}", whole=False)


DRAW_ONLY = "Draw only, no model here"
GROUPS = """() => [...document.querySelectorAll("#model optgroup")].map(group =>
    [group.label, [...group.children].map(option => option.textContent)])"""


def groups(page: Page) -> dict[str, list[str]]:
    return dict(page.evaluate(GROUPS))


def test_models_are_grouped_by_puzzle(sized_page: Page):
    found = groups(sized_page)
    assert list(found) == ["Sudoku", "Mazes", "Cities", "ARC", DRAW_ONLY]
    assert [text.split(" · ")[0] for text in found["Sudoku"]] == ["sudoku-6x6", "sudoku"]
    assert "maze-14x14 · 14×14" in found[DRAW_ONLY]
    require_no_sideways_scroll(sized_page)


def test_size_and_accuracy_are_those_of_the_server(page: Page, site: Server):
    changed = site.models()
    changed[1]["provenance"].update(held_out=321, solved=0.4321, solved_16_attempts=0.9876)
    changed[4].update(provenance={}, held_out_tasks=None)
    page.route("**/models", lambda route: route.fulfill(json={"models": changed}))
    page.reload()
    page.wait_for_selector("#board [role=gridcell]")
    assert groups(page)["Sudoku"][1] == "sudoku · 9×9 · 43 % right"
    choose(page, "sudoku")
    expected = "Of 321 boards it had never seen, it got 43 % right, and 99 % with 16 attempts."
    assert page.inner_text("#about") == expected
    assert "arc-7x7 · 7×7" in groups(page)["ARC"]
    choose(page, "arc-7x7")
    assert page.inner_text("#about") == "This one has learned 76 tasks and knows no others."
