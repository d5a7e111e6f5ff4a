"""A puzzle has an address; its answer, a picture or a video of the thinking can be taken away."""

import base64
from pathlib import Path

import pytest
from service_tools import Server
from web_tools import (
    LAPTOPS,
    SIZES,
    Browser,
    Page,
    Size,
    choose,
    digits,
    expect,
    screen,
    solve,
    visit,
)

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


def clipboard(page: Page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("size", SIZES)
def test_a_link_opens_its_puzzle(browser: Browser, site: Server, size: Size) -> None:
    with visit(browser, site, size, LINK) as page:
        assert page.input_value("#model") == "sudoku"
        assert digits(page) == QUESTION
        assert solve(page) == "Proven"
        assert page.url == site.url + LINK
        page.click("#copy-answer")
        expect(page.locator("#shared")).to_have_text("The answer is copied.")
        assert clipboard(page).replace("\n", "") == digits(page)
        screen(page, f"sharing-{size[0]}", whole=size in LAPTOPS)


def test_a_copied_link_shows_the_same_board(browser: Browser, site: Server) -> None:
    tasks = site.http.get("/models/arc-7x7/tasks").json()
    *_, task = tasks
    name = task["task"]
    with visit(browser, site, SIZES[0]) as page:
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
def test_bad_links_explained(
    browser: Browser, site: Server, address: str, selector: str, words: str
) -> None:
    with visit(browser, site, SIZES[0], address) as page:
        expect(page.locator(selector)).to_contain_text(words)


@pytest.mark.parametrize("model", ["sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-7x7"])
def test_the_picture_is_a_png(page: Page, tmp_path: Path, model: str) -> None:
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


def test_the_video_plays(browser: Browser, site: Server, tmp_path: Path) -> None:
    with visit(browser, site, SIZES[0]) as page:
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
    assert file.stem == "arc-7x7"
    assert 0 < played["width"] < played["height"]
    assert played["seconds"] > 1.5  # the last frame alone takes so long
