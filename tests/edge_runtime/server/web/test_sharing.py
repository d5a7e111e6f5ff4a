"""A puzzle has an address; answer, picture, video and a drawn set can be taken away."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from service_tools import Server, wait_for
from web_tools import (
    LAPTOPS,
    SIZES,
    Browser,
    Page,
    Size,
    cell,
    choose,
    digits,
    expect,
    painted,
    paste,
    screen,
    solve,
    visit,
)

from hrm_puzzles import registry
from hrm_puzzles.data.build import import_file
from hrm_puzzles.data.datasets import open_split

pytestmark = pytest.mark.process

QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
LINK = f"/#sudoku={QUESTION}"
PNG_START = b"\x89PNG\r\n\x1a\n"
PLAY = """async address => {
    const video = document.createElement("video");
    video.muted = true;
    video.src = address;
    await video.play();
    await new Promise(resolve => { video.onended = resolve; });
    return {width: video.videoWidth, height: video.videoHeight, seconds: video.currentTime};
}"""


def saved(page: Page, button: str, folder: Path) -> Path:
    """Return the file that a button saves."""
    with page.expect_download() as waiting:
        page.click(button)
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def clipboard(page: Page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("size", SIZES)
def test_a_link_opens_its_puzzle(browser: Browser, site: Server, size: Size):
    with visit(browser, site, size, LINK) as page:
        assert page.input_value("#model") == "sudoku"
        assert digits(page) == QUESTION
        assert solve(page) == "Proven"
        assert page.url == site.url + LINK
        page.click("#copy-answer")
        expect(page.locator("#shared")).to_have_text("The answer is copied.")
        assert clipboard(page).replace("\n", "") == digits(page)
        screen(page, f"sharing-{size[0]}", whole=size in LAPTOPS)


def test_a_copied_link_shows_the_same_board(page: Page, site: Server):
    task = site.http.get("/models/arc-7x7/tasks").json()[-1]
    name = task["task"]
    for model in ("sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-7x7"):
        choose(page, model)
        if model == "arc-7x7":
            page.click("#tasks summary")
            page.click(f"[aria-label='Task {name}']")
        text = page.input_value("#text")
        page.click("#copy-link")
        expect(page.locator("#shared")).to_have_text("The link is copied.")
        link = clipboard(page)
        assert link.isascii()
        assert " " not in link
        page.evaluate("localStorage.clear()")
        page.goto("about:blank")
        page.goto(link)
        expect(page.locator("#model")).to_have_value(model)
        expect(page.locator("#text")).to_have_value(text)
        if model == "arc-7x7":
            num_demonstrations = len(task["train"])
            expect(page.locator(".demonstration")).to_have_count(num_demonstrations)


@pytest.mark.parametrize(
    ("address", "selector", "words"),
    [
        ("/#chess=e4", "#verdict-text", "no model or board named chess"),
        ("/#sudoku=53..x", "#verdict-title", "Not a puzzle"),
    ],
)
def test_bad_links_explained(page: Page, site: Server, address: str, selector: str, words: str):
    page.goto("about:blank")
    page.goto(f"{site.url}{address}")
    expect(page.locator(selector)).to_contain_text(words)


@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-7x7"])
def test_the_picture_is_a_png(page: Page, tmp_path: Path, model: str):
    choose(page, model)
    assert page.is_disabled("#save-picture")
    solve(page)
    file = saved(page, "#save-picture", tmp_path)
    assert file.name == f"{model}.png"
    assert file.read_bytes().startswith(PNG_START)
    assert file.stat().st_size > 5000
    page.click("#clear")
    assert page.is_disabled("#save-picture")
    assert page.is_disabled("#copy-answer")


def test_the_video_plays(page: Page, tmp_path: Path):
    choose(page, "arc-7x7")
    solve(page)
    with page.expect_download() as waiting:
        page.click("#save-video")
        expect(page.locator("#shared")).to_have_text("Recording …")
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    ending = file.suffix.removeprefix(".")
    expect(page.locator("#shared")).to_have_text(f"The video is saved ({ending}).")
    content = base64.b64encode(file.read_bytes()).decode()
    blank = page.context.new_page()
    played = blank.evaluate(PLAY, f"data:video/{ending};base64,{content}")
    blank.close()
    assert file.stem == "arc-7x7"
    assert 0 < played["width"] < played["height"]
    assert played["seconds"] > 1.5  # the last frame alone takes so long


def exported(page: Page, folder: Path) -> Path:
    page.click("#tab-set")
    return saved(page, "#export", folder)


def check_import(file: Path, kind: str, num_examples: int) -> None:
    out = file.parent / "data"
    puzzle = registry.get(kind)
    imported = import_file(file, puzzle, out, split="train")
    assert (imported.num_train, imported.faults) == (num_examples, [])
    assert len(open_split(out, "train", puzzle)) == num_examples


def test_solved_puzzles_are_exported_and_imported_as_a_data_set(page: Page, tmp_path: Path):
    for sample in ("Short", "Round the block", "Long way"):
        choose(page, "maze-8x8", sample)
        assert solve(page) == "Proven"
        page.click("#add")
        assert page.inner_text("#add") == "In the set"
    page.click("#tab-set")
    screen(page, "set")
    picture = page.locator("#set-list canvas").first
    light = painted(picture)
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: painted(picture) != light)
    file = exported(page, tmp_path)
    command = f"hrm-data import {file.name} maze-8x8 --out data/drawn"
    assert page.inner_text("#set-command") == command
    check_import(file, "maze-8x8", 3)


def test_disproven_answer_is_kept_out_of_the_set(page: Page):
    choose(page, "sudoku", "Extreme")
    page.click("summary:has-text('How to think')")
    page.fill("#segments-wanted", "1")
    assert solve(page) == "Not proven"
    assert page.is_disabled("#add")


def test_answer_drawn_by_hand_makes_an_arc_pair(page: Page, tmp_path: Path):
    choose(page, "arc-7x7")
    for side, size in (("Rows", "1"), ("Columns", "3")):
        page.fill(f"#answer-board [aria-label={side}]", size)
        page.keyboard.press("Tab")
    page.click("label[title^=green]")
    page.locator("#answer-board [role=gridcell]").nth(2).click()
    page.click("#add")
    expect(page.locator("#add")).to_have_text("In the set")
    file = exported(page, tmp_path)
    pair = json.loads(file.read_text())
    assert pair["puzzle"]["task"] == page.input_value("#task")
    assert np.shape(pair["solution"]) == (1, 3)
    assert pair["solution"][0][2] == 3
    assert import_file(file, registry.get("arc-7x7"), tmp_path / "d", split="train").num_train == 1


def test_fresh_board_joins_the_set_with_its_answer(page: Page, tmp_path: Path):
    choose(page, "maze-14x14")  # which no model here solves
    expect(page.locator("#show-label")).to_be_visible()
    assert page.is_disabled("#solve")
    page.click("#show-label")
    page.click("#add")
    check_import(exported(page, tmp_path), "maze-14x14", 1)


def test_a_right_answer_drawn_on_a_maze_joins_the_set(page: Page, tmp_path: Path):
    choose(page, "maze-8x8")
    paste(page, "\n".join(["S..G####", *["########"] * 7]))
    page.click("#draw-label")
    cell(page, 1, 2).click()
    page.click("#add")  # the way is not whole yet
    expect(page.locator("#add-why")).to_contain_text("not a shortest path")
    cell(page, 1, 3).click()
    expect(page.locator("#add-why")).to_be_empty()
    page.click("#add")
    expect(page.locator("#add")).to_have_text("In the set")
    check_import(exported(page, tmp_path), "maze-8x8", 1)
