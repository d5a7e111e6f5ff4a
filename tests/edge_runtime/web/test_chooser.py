"""The list of models tells what each is for; every figure in it comes from /models."""

import pytest
from service_tools import Server
from visit_tools import SIZES, Size, visit
from web_tools import Browser, Page, choose, screen

pytestmark = pytest.mark.process

DRAW_ONLY = "Draw only, no model here"
GROUPS = """() => [...document.querySelectorAll("#model optgroup")].map(group =>
    [group.label, [...group.children].map(option => option.textContent)])"""


def groups(page: Page) -> dict[str, list[str]]:
    return dict(page.evaluate(GROUPS))


@pytest.mark.parametrize("size", SIZES)
def test_models_are_grouped_by_puzzle_and_boards_without_one_are_apart(
    browser: Browser, site: Server, size: Size
) -> None:
    with visit(browser, site, size) as page:
        found = groups(page)
        assert list(found) == ["Sudoku", "Mazes", "Cities", "ARC", DRAW_ONLY]
        assert [text.split(" · ")[0] for text in found["Sudoku"]] == ["sudoku-6x6", "sudoku"]
        assert "maze-14x14 · 14×14" in found[DRAW_ONLY]
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        screen(page, f"chooser-{size[0]}", whole=False)


def test_size_and_accuracy_are_those_of_the_server(browser: Browser, site: Server) -> None:
    models = site.http.get("/models").json()["models"]
    changed = [{**model, "provenance": {**model["provenance"]}} for model in models]
    changed[1]["provenance"].update(held_out=321, solved=0.4321, solved_16_attempts=0.9876)
    with visit(browser, site, SIZES[0]) as page:
        page.route("**/models", lambda route: route.fulfill(json={"models": changed}))
        page.reload()
        page.wait_for_selector("#board [role=gridcell]")
        assert groups(page)["Sudoku"][1] == "sudoku · 9×9 · 43 % right"
        choose(page, "sudoku")
        expected = "Of 321 boards it had never seen, it got 43 % right, and 99 % with 16 attempts."
        assert page.inner_text("#about") == expected


def test_model_without_a_record_shows_no_share(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0]) as page:
        assert "arc-colors · 7×7" in groups(page)["ARC"]
        choose(page, "arc-colors")
        assert page.inner_text("#about") == "This one has learned 2 tasks and knows no others."
