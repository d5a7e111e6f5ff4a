"""A puzzle has an address; its answer and a picture of the thinking can be taken away."""

from pathlib import Path

import pytest
from service_tools import Server
from visit_tools import SIZES, Size, visit
from web_tools import Browser, Page, cell, choose, digits, expect, paste, screen, solve

pytestmark = pytest.mark.process

QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
LINK = f"/#sudoku={QUESTION}"
PNG_START = b"\x89PNG\r\n\x1a\n"


def clipboard(page: Page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("size", SIZES)
def test_link_opens_its_puzzle_on_the_first_visit_and_solves_it(
    browser: Browser, site: Server, size: Size
) -> None:
    with visit(browser, site, size, LINK) as page:
        assert page.input_value("#model") == "sudoku"
        assert digits(page) == QUESTION
        assert solve(page) == "Proven"
        assert page.url == site.url + LINK
        page.click("#copy-answer")
        expect(page.locator("#shared")).to_have_text("The answer is copied.")
        assert clipboard(page).replace("\n", "") == digits(page)
        screen(page, f"sharing-{size[0]}", whole=False)


def test_copied_link_of_every_kind_shows_the_same_board_elsewhere(
    browser: Browser, site: Server
) -> None:
    for model in ("sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-7x7"):
        with visit(browser, site, SIZES[0]) as page:
            choose(page, model)
            if model == "arc-7x7":
                page.click("#tasks summary")
                page.click("[aria-label='Task 0d3d703e']")
            text = page.input_value("#text")
            page.click("#copy-link")
            expect(page.locator("#shared")).to_have_text("The link is copied.")
            link = clipboard(page)
        assert link.isascii()
        assert " " not in link
        with visit(browser, site, SIZES[0], link.removeprefix(site.url)) as page:
            assert page.input_value("#model") == model
            expect(page.locator("#text")).to_have_value(text)
            if model == "arc-7x7":
                expect(page.locator(".demonstration")).to_have_count(4)


def test_address_follows_the_board_and_keeps_its_tab(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0]) as page:
        assert page.url == f"{site.url}/"
        page.click("#clear")
        cell(page, 1, 2).click()
        page.keyboard.type("5")
        assert page.url == f"{site.url}/#sudoku-6x6=.5{34 * '.'}"
        page.click("#tab-operations")
        assert page.url == f"{site.url}/#operations"
        page.click("#tab-puzzle")
        assert page.url == f"{site.url}/#sudoku-6x6=.5{34 * '.'}"
        page.evaluate(f"location.hash = '{LINK.removeprefix('/')}'")
        expect(page.locator("#model")).to_have_value("sudoku")
        assert digits(page) == QUESTION


def test_link_to_a_model_that_is_not_here_is_explained(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0], "/#chess=e4") as page:
        expect(page.locator("#verdict-text")).to_contain_text("no model or board named chess")


def test_link_with_a_broken_puzzle_gets_the_sentence_of_the_server(
    browser: Browser, site: Server
) -> None:
    with visit(browser, site, SIZES[0], "/#sudoku=53..x") as page:
        expect(page.locator("#verdict-title")).to_have_text("Not a puzzle")


@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-colours"])
def test_picture_of_the_thinking_is_a_png(
    browser: Browser, site: Server, tmp_path: Path, model: str
) -> None:
    with visit(browser, site, SIZES[0]) as page:
        choose(page, model)
        assert page.is_disabled("#save-picture")
        solve(page)
        with page.expect_download() as waiting:
            page.click("#save-picture")
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert file.name == f"{model}.png"
        assert file.read_bytes().startswith(PNG_START)
        assert file.stat().st_size > 5000
        page.click("#clear")
        assert page.is_disabled("#save-picture")
        assert page.is_disabled("#copy-answer")


def test_new_answer_is_not_mistaken_for_the_old_one(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0], LINK) as page:
        solve(page)
        paste(page, QUESTION.replace("5", ".", 1))
        assert page.is_disabled("#copy-answer")
