"""An ARC model is often wrong; the page says so before and after it answers."""

from typing import Any

import pytest
from service_tools import Server
from visit_tools import SIZES, Size, visit
from web_tools import Browser, Page, choose, expect, screen, solve

pytestmark = pytest.mark.process

FRAMED = ".cell.differs"


def lead_of(page: Page) -> str:
    return " ".join(page.inner_text(".lead").split())


def results(site: Server) -> Any:
    models = site.http.get("/models").json()["models"]
    return next(model for model in models if model["name"] == "arc-7x7")["held_out_tasks"]


@pytest.mark.parametrize("size", SIZES)
def test_first_task_is_one_that_the_model_gets_right(
    browser: Browser, site: Server, size: Size
) -> None:
    with visit(browser, site, size) as page:
        assert "keeps every rule and every given, not that it is the only" in lead_of(page)
        choose(page, "arc-7x7")
        expect(page.locator("#tasks")).to_be_visible()
        assert "has no proof" in lead_of(page)
        assert "Proven means" not in lead_of(page)
        assert "16 attempts" in page.inner_text("#about")
        assert page.input_value("#task") in results(site)["right"]
        assert solve(page) == "Right"
        assert page.is_visible(".author")
        assert page.locator(FRAMED).count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        screen(page, f"task-right-{size[0]}", whole=False)


@pytest.mark.parametrize("size", SIZES)
def test_wrong_answer_is_shown_beside_the_authors_with_frames(
    browser: Browser, site: Server, size: Size
) -> None:
    right = results(site)["right"]
    names = site.http.get("/models/arc-7x7/tasks").json()
    wrong = next(name for name in names if name not in right)
    with visit(browser, site, size) as page:
        choose(page, "arc-7x7")
        page.click("#tasks summary")
        page.click(f"[aria-label='Task {wrong}']")
        assert page.is_hidden(".author")
        assert solve(page) == "Wrong"
        assert page.locator(f".author {FRAMED}").count() > 0
        assert page.locator(f"#answer-board .board-frame {FRAMED}").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        screen(page, f"task-wrong-{size[0]}", whole=False)
        page.click("#clear")
        assert page.is_hidden(".author")


def test_the_share_that_a_model_gets_right_comes_from_the_server(
    browser: Browser, site: Server
) -> None:
    models = site.http.get("/models").json()["models"]
    models[1]["provenance"].update(held_out=321, solved=0.4321, solved_16_attempts=0.9876)
    with visit(browser, site, SIZES[0]) as page:
        page.route("**/models", lambda route: route.fulfill(json={"models": models}))
        page.reload()
        page.wait_for_selector("#board [role=gridcell]")
        choose(page, "sudoku")
        expected = "Of 321 boards it had never seen, it got 43 % right, and 99 % with 16 attempts."
        assert page.inner_text("#about") == expected
        choose(page, "arc-colors")
        assert page.inner_text("#about") == "This one has learned 2 tasks and knows no others."
