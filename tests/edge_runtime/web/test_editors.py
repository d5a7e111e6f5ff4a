"""Each kind of puzzle can be drawn, solved and judged in the browser."""

import pytest
from service_tools import Server
from web_tools import Locator, Page, cell, choose, digits, expect, screen, solve

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle

pytestmark = pytest.mark.process


def drag(page: Page, first: Locator, last: Locator) -> None:
    first.hover()
    page.mouse.down()
    box = last.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    y = box["y"] + box["height"] / 2
    page.mouse.move(x, y, steps=8)
    page.mouse.up()


def test_sudoku_typed_by_hand_is_solved_and_proven(page: Page, site: Server) -> None:
    question = "314...5..41.24...5..314....6.113.2.4"
    page.click("#clear")
    cell(page, 1, 1).click()
    page.keyboard.type(question)
    assert digits(page) == question
    assert solve(page) == "Proven"
    assert digits(page) == site.solve(question).json()["solution"]
    choose(page, "sudoku", "Newspaper")
    assert solve(page) == "Proven"
    screen(page, "sudoku")


def test_maze_drawn_with_the_pointer_is_solved(page: Page) -> None:
    choose(page, "maze-8x8")
    page.click("#clear")
    drag(page, cell(page, 4, 1), cell(page, 4, 7))
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


def test_city_with_a_depot_and_customers_is_solved(page: Page) -> None:
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


def test_arc_task_is_chosen_from_pictures_and_judged_by_its_own_answer(page: Page) -> None:
    tasks = Bundle.open(find_bundle("arc-7x7")).tasks()  # those that are right come first
    choose(page, "arc-7x7")
    expect(page.locator(".demonstration")).to_have_count(4)
    assert page.input_value("#task") == tasks[0]
    page.click("#tasks summary")
    page.click(f"[aria-label='Task {tasks[-1]}']")
    assert page.input_value("#task") == tasks[-1]
    assert solve(page) in ("Right", "Wrong")
    screen(page, "tasks")
