"""What a person pastes: a task file of ARC, and text that is no board here."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import ran
from puzzle_tools import question_of
from service_tools import Server, command, hrm_serve
from web_tools import (
    DONE,
    SIZES,
    Browser,
    Page,
    Route,
    choose,
    expect,
    paste,
    require_no_sideways_scroll,
    solve,
    verdict,
    visit,
)

pytestmark = pytest.mark.process

TASK = {
    "train": [
        {"input": [[1, 0], [0, 2]], "output": [[5, 4], [4, 6]]},
        {"input": [[1, 0], [3, 2]], "output": [[5, 4], [7, 6]]},
    ],
    "test": [{"input": [[0, 7], [7, 7]], "output": [[4, 1], [1, 1]]}],
}
LARGE_MAZE = "S" + "." * 40 + "\n" + "." * 40 + "G"


def sentences(page: Page) -> list[str]:
    """What the page says about a puzzle, wherever it says it."""
    return page.locator("#verdict-text:visible, .bubble:visible").all_inner_texts()


@pytest.mark.parametrize("model", ["sudoku-6x6", "arc-7x7"])
def test_task_file_shows_commands(sized_page: Page, model: str):
    choose(sized_page, model)
    if model == "arc-7x7":
        expect(sized_page.locator("#tasks")).to_be_visible()
    paste(sized_page, json.dumps(TASK))
    expect(sized_page.locator("#verdict-title")).to_have_text("A task it has not learned")
    assert sized_page.input_value("#model") == "arc-7x7"
    assert sized_page.input_value("#task") == ""
    assert sized_page.locator(".demonstration").count() == 2
    assert "this one has no name" in sized_page.inner_text("#verdict-text")
    assert "hrm-train" in sized_page.inner_text("#verdict-commands")
    require_no_sideways_scroll(sized_page)


def test_shown_commands_build_the_data(page: Page, tmp_path: Path):
    paste(page, json.dumps(TASK))
    expect(page.locator("#verdict-commands")).to_be_visible()
    build = page.inner_text("#verdict-commands").split("\n")[0]
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "mine.json").write_text(json.dumps(TASK))
    program, *arguments = shlex.split(build)
    assert program == "hrm-data"
    ran(*command("data", *arguments), cwd=tmp_path)
    assert (tmp_path / "data/tasks").is_dir()


def choose_with_late_tasks(page: Page) -> Route:
    """Choose a model of ARC, and return the request for its tasks, which waits."""
    held: list[Route] = []
    page.route("**/models/arc-7x7/tasks", lambda route: held.append(route))
    choose(page, "arc-7x7")
    while not held:
        page.wait_for_timeout(10)
    return held[0]


@pytest.mark.parametrize("text", ["hello, this is no puzzle", json.dumps(TASK)])
def test_late_tasks_keep_what_was_pasted(page: Page, text: str):
    tasks = choose_with_late_tasks(page)
    paste(page, text)
    tasks.continue_()
    expect(page.locator("#tasks")).to_be_visible()
    page.wait_for_selector(DONE)
    assert len(sentences(page)) == 1


def test_late_tasks_keep_what_is_solved(page: Page):
    tasks = choose_with_late_tasks(page)
    title = solve(page)
    tasks.continue_()
    expect(page.locator("#tasks")).to_be_visible()
    assert page.inner_text("#verdict-title") == title


ODD_PAIRS = [{"input": 1}, {"input": [], "output": []}, {"input": [[1.5]], "output": [["a"]]}]
ODD_TASKS = [None, 7, {}, {"train": []}, {"train": None}, {"train": [{}], "test": []}]
ODD_TASKS += [{"task": "odd", "train": [pair], "test": [pair]} for pair in ODD_PAIRS]
ODD_TASKS += [TASK, {"task": 7, **TASK}]


@pytest.mark.parametrize(
    ("sent", "num_shown"),
    [
        ("{", 0),
        ("null", 0),
        ("[]", 0),
        ("7", 0),
        (json.dumps({"good": TASK}), 0),
        (json.dumps([{"task": "good", **TASK}, *ODD_TASKS]), 1),
    ],
)
def test_odd_tasks_of_a_bundle_leave_the_board(page: Page, sent: str, num_shown: int):
    page.route("**/models/arc-7x7/tasks", lambda route: route.fulfill(body=sent))
    choose(page, "arc-7x7")
    paste(page, json.dumps(TASK))
    expect(page.locator("#verdict-title")).to_be_visible()
    assert page.locator(".demonstration").count() == 2
    assert page.locator("#tasks-list .task").count() == num_shown


@pytest.mark.parametrize("text", [LARGE_MAZE, "hello, this is no puzzle", '{"a": 1}'])
@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8", "arc-7x7"])
def test_unfit_text_is_explained_once(page: Page, model: str, text: str):
    choose(page, model)
    paste(page, text)
    page.wait_for_selector(DONE)
    assert len(sentences(page)) == 1
    assert page.locator("[aria-invalid]").count() == 0


SIXTEEN = "1" + "." * 254 + "G"
ROWS = [list(range(17))[1:], *[[0] * 16] * 15]


@pytest.mark.parametrize(
    "text",
    [
        SIXTEEN,
        "\n".join(SIXTEEN[start : start + 16] for start in range(0, 256, 16)),
        "\n".join(" ".join(map(str, row)) for row in ROWS),
        json.dumps(ROWS),
    ],
)
def test_a_sudoku_of_another_size_is_told_what_it_is(page: Page, text: str):
    choose(page, "maze-8x8")
    paste(page, text)
    expect(page.locator("#verdict-title")).to_have_text("A Sudoku of 16×16")
    assert page.inner_text("#verdict-text").endswith("; send one of 6×6 or 9×9.")


@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8"])
def test_a_pasted_puzzle_is_solved_by_enter(page: Page, model: str):
    choose(page, model)
    page.locator("#board [role=gridcell]").last.click()
    paste(page, question_of("logistics-6x6"))
    expect(page.locator("#model")).to_have_value("logistics-6x6")
    page.keyboard.press("Enter")
    assert verdict(page) == "Proven"


@pytest.fixture(scope="module")
def mazes() -> Iterator[Server]:
    with hrm_serve("maze-8x8", "maze-14x14") as server:
        yield server


def test_a_smaller_maze_is_solved(browser: Browser, mazes: Server):
    rows, cols = 9, 13
    question = question_of(f"maze-{rows}x{cols}", "medium")
    with visit(browser, mazes, SIZES[0]) as page:
        paste(page, question)
        expect(page.locator("#model")).to_have_value("maze-14x14")
        expect(page.locator("#board [role=row]")).to_have_count(rows)
        expect(page.locator("#board [role=gridcell]")).to_have_count(rows * cols)
        assert solve(page) == "Proven"
        assert page.input_value("#text").strip() == question
        link = page.evaluate("location.href")
        names = page.locator("#model option").evaluate_all("all => all.map(one => one.value)")
        assert ("maze" in names, "maze-10x10" in names) == (True, False)  # a model holds these
    with visit(browser, mazes, SIZES[0]) as page:
        page.goto(link)
        expect(page.locator("#board [role=gridcell]")).to_have_count(rows * cols)
        assert solve(page) == "Proven"
