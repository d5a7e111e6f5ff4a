"""What a person pastes: a task file of ARC, and text that is no board here."""

import json
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from service_tools import Server, command
from visit_tools import SIZES, Size, visit
from web_tools import DONE, Browser, Page, Route, choose, expect, paste

pytestmark = pytest.mark.process

TASK = {
    "train": [
        {"input": [[1, 0], [0, 2]], "output": [[5, 4], [4, 6]]},
        {"input": [[1, 0], [3, 2]], "output": [[5, 4], [7, 6]]},
    ],
    "test": [{"input": [[0, 7], [7, 7]], "output": [[4, 1], [1, 1]]}],
}
TASKS_TAKE_S = 0.5
LARGE_MAZE = "S" + "." * 40 + "\n" + "." * 40 + "G"


def sentences(page: Page) -> list[str]:
    """What the page says about a puzzle, wherever it says it."""
    return page.locator("#verdict-text:visible, .bubble:visible").all_inner_texts()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", ["sudoku-6x6", "arc-7x7"])
def test_task_file_is_drawn_with_the_commands_that_teach_it(
    browser: Browser, site: Server, size: Size, model: str
) -> None:
    with visit(browser, site, size) as page:
        choose(page, model)
        if model == "arc-7x7":
            expect(page.locator("#tasks")).to_be_visible()
        paste(page, json.dumps(TASK))
        expect(page.locator("#verdict-title")).to_have_text("A task it has not learned")
        assert page.input_value("#model") == "arc-7x7"
        assert page.input_value("#task") == ""
        assert page.locator(".demonstration").count() == 2
        assert "this one has no name" in page.inner_text("#verdict-text")
        assert "hrm-train" in page.inner_text("#verdict-commands")
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]


def test_the_commands_build_a_data_set_of_the_file(
    browser: Browser, site: Server, tmp_path: Path
) -> None:
    with visit(browser, site, SIZES[0]) as page:
        paste(page, json.dumps(TASK))
        expect(page.locator("#verdict-commands")).to_be_visible()
        build = page.inner_text("#verdict-commands").split("\n")[0]
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "mine.json").write_text(json.dumps(TASK))
    program, *arguments = shlex.split(build)
    assert program == "hrm-data"
    subprocess.run(command("data", *arguments), cwd=tmp_path, check=True)
    assert (tmp_path / "data/tasks").is_dir()


def delay_tasks(route: Route) -> None:
    time.sleep(TASKS_TAKE_S)
    route.continue_()


@pytest.mark.parametrize("text", ["hello, this is no puzzle", json.dumps(TASK)])
def test_tasks_that_arrive_late_leave_what_was_pasted(
    browser: Browser, site: Server, text: str
) -> None:
    with visit(browser, site, SIZES[0]) as page:
        page.route("**/models/arc-7x7/tasks", delay_tasks)
        choose(page, "arc-7x7")
        paste(page, text)
        expect(page.locator("#tasks")).to_be_visible()
        page.wait_for_selector(DONE)
        assert len(sentences(page)) == 1


@pytest.mark.parametrize("text", [LARGE_MAZE, "hello, this is no puzzle", '{"a": 1}'])
@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8", "arc-7x7"])
def test_text_of_another_kind_or_size_is_explained_once(
    browser: Browser, site: Server, model: str, text: str
) -> None:
    with visit(browser, site, SIZES[0]) as page:
        choose(page, model)
        paste(page, text)
        page.wait_for_selector(DONE)
        assert len(sentences(page)) == 1
        assert page.locator("[aria-invalid]").count() == 0
