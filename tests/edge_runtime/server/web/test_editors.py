"""Each kind of puzzle can be drawn, solved and judged in the browser."""

from dataclasses import asdict
from typing import Any

import pytest
from service_tools import Server, wait_for
from web_tools import (
    Locator,
    Page,
    cell,
    choose,
    digits,
    expect,
    painted,
    require_no_sideways_scroll,
    screen,
    solve,
    width_of,
)

from hrm_puzzles import registry

pytestmark = pytest.mark.process


def test_a_typed_sudoku_is_solved_and_backspace_erases(page: Page, site: Server):
    choose(page, "sudoku", "Newspaper")
    assert solve(page) == "Proven"
    screen(page, "sudoku")
    choose(page, "sudoku-6x6")
    page.click("#clear")
    cell(page, 1, 1).click()
    page.keyboard.type("12")
    for left in ("1.", ".."):
        page.keyboard.press("Backspace")
        assert digits(page)[:2] == left
    page.keyboard.type("314...5..41.24...5..314....6.113.2.4")
    question = digits(page)
    assert solve(page) == "Proven"
    assert digits(page) == site.solve(question).json()["solution"]
    cell(page, 1, 5).click()
    page.keyboard.press("Backspace")
    assert digits(page) == question
    choose(page, "arc-7x7")
    page.locator("#answer-board [role=gridcell]").first.click()
    page.keyboard.type("12")
    page.keyboard.press("Backspace")
    drawn = page.locator("#answer-board [role=gridcell]").all_text_contents()
    assert drawn[:2] == ["1", "0"]


def test_maze_drawn_with_the_pointer_is_solved(page: Page):
    choose(page, "maze-8x8")
    page.click("#clear")
    cell(page, 4, 1).hover()
    page.mouse.down()
    box = cell(page, 4, 7).bounding_box()
    x = box["x"] + box["width"] / 2
    y = box["y"] + box["height"] / 2
    page.mouse.move(x, y, steps=8)
    page.mouse.up()
    page.click("label.brush:has-text('Start')")
    cell(page, 1, 1).click()
    page.click("label.brush:has-text('Goal')")
    cell(page, 8, 1).click()
    page.click("summary:has-text('As text')")
    free = "........"
    board = ["S.......", free, free, "#######.", free, free, free, "G......."]
    assert page.input_value("#text").split("\n") == board
    choose(page, "maze-8x8", "Round the block")
    assert solve(page) == "Proven"
    assert page.get_attribute("#board .way", "d") != ""
    page.click("summary:has-text('As text')")
    screen(page, "maze")


def test_city_with_a_depot_and_customers_is_solved(page: Page):
    choose(page, "logistics-6x6", "One customer")
    page.click("label.brush:has-text('Customer')")
    cell(page, 6, 5).click()
    assert page.locator("#board .customer").count() == 2
    page.click("#undo")
    assert page.locator("#board .customer").count() == 1
    assert solve(page) == "Proven"
    choose(page, "logistics-6x6", "Main street")
    assert solve(page) == "Proven"
    visited = page.locator("#board .visited").all_inner_texts()
    assert sorted(visited) == ["1", "2", "3", "4", "5"]
    screen(page, "logistics")


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


@pytest.mark.parametrize(
    ("name", "answer", "spare"),
    [("logistics-6x6", CITY, [(2, 0), (2, 1)]), ("maze-8x8", MAZE, [(1, 0)])],
)
def test_spare_marks_are_crossed_out(
    page: Page, name: str, answer: str, spare: list[tuple[int, int]]
):
    puzzle = registry.get(name)
    said = puzzle.board_of(answer)
    asked = puzzle.decode(puzzle.bare(puzzle.encode(said)))
    route = puzzle.route(asked, said)
    assert route.cost == route.optimum
    told = page.evaluate(TOLD, [name, asked.tolist(), said.tolist(), asdict(route)])
    assert told["crossed"] == [row * said.shape[1] + col for row, col in spare]
    assert told["verdict"]["title"] == "Not proven"
    for row, col in spare:
        assert f"row {row + 1}, column {col + 1}" in told["verdict"]["text"]


FRAMED = ".cell.differs"


def lead_of(page: Page) -> str:
    return " ".join(page.inner_text(".lead").split())


def results(site: Server, name: str) -> Any:
    models = site.models()
    return next(model for model in models if model["name"] == name)["held_out_tasks"]


@pytest.mark.parametrize("model", ["arc-7x7", "arc-15x15"])
def test_the_first_task_is_a_right_one(sized_page: Page, site: Server, model: str):
    assert "keeps every rule and every given, not that it is the only" in lead_of(sized_page)
    choose(sized_page, model)
    expect(sized_page.locator("#tasks")).to_be_visible()
    assert "has no proof" in lead_of(sized_page)
    assert "Proven means" not in lead_of(sized_page)
    assert "16 attempts" in sized_page.inner_text("#about")
    assert sized_page.input_value("#task") in results(site, model)["right"]
    assert solve(sized_page) == "Right"
    assert sized_page.is_visible(".author")
    assert sized_page.locator(FRAMED).count() == 0
    require_no_sideways_scroll(sized_page)
    if model == "arc-7x7":
        screen(sized_page, f"task-right-{width_of(sized_page)}", whole=False)


MOST_ELEMENTS = 5000  # of a page


def expect_color(canvas: Locator, color: str) -> None:
    wait_for(lambda: painted(canvas) == color)


@pytest.mark.parametrize("model", ["arc-7x7", "arc-15x15"])
def test_a_gallery_paints_what_is_scrolled_to(page: Page, site: Server, model: str):
    tasks = site.http.get(f"/models/{model}/tasks").json()
    choose(page, model)
    page.click("#tasks summary")
    thumbnails = page.locator("#tasks-list canvas")
    expect(thumbnails).to_have_count(2 * len(tasks))
    assert page.evaluate("document.querySelectorAll('*').length") <= MOST_ELEMENTS
    assert painted(thumbnails.last) == ""
    for task, thumbnail in ((tasks[0], thumbnails.first), (tasks[-1], thumbnails.nth(-2))):
        thumbnail.scroll_into_view_if_needed()
        color = task["train"][0]["input"][0][0]
        swatch = page.locator(f".swatch .color-{color}")
        shown = swatch.evaluate("one => getComputedStyle(one).backgroundColor")
        expect_color(thumbnail, shown)
    expect_color(thumbnails.first, "")


def test_a_wrong_answer_shows_the_authors(sized_page: Page, site: Server):
    right = results(site, "arc-7x7")["right"]
    tasks = site.http.get("/models/arc-7x7/tasks").json()
    wrong = next(task["task"] for task in tasks if task["task"] not in right)
    choose(sized_page, "arc-7x7")
    sized_page.click("#tasks summary")
    sized_page.click(f"[aria-label='Task {wrong}']")
    assert sized_page.is_hidden(".author")
    assert solve(sized_page) == "Wrong"
    assert sized_page.locator(f".author {FRAMED}").count() > 0
    assert sized_page.locator(f"#answer-board .board-frame {FRAMED}").count() > 0
    require_no_sideways_scroll(sized_page)
    screen(sized_page, f"task-wrong-{width_of(sized_page)}", whole=False)
    sized_page.click("#clear")
    assert sized_page.is_hidden(".author")
