"""A person watches the model think: segments, margins, attempts side by side; and can stop it."""

import json
import re
from pathlib import Path

import pytest
from files import lines_in
from service_tools import NDJSON, Server, wait_for
from web_tools import Page, choose, digits, expect, screen, solve, think_for, verdict

pytestmark = pytest.mark.process

HARD = "Extreme"
HARDEST = "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......"


# An attempt names the segment of its first proof, and thinks on after it.
PROVEN_BEFORE = """() => {
    const words = document.querySelector(".attempt.proven .said")?.textContent ?? "";
    const segment = Number(document.querySelector("#segment-now").textContent);
    return words && Number(words.replace("proven at ", "")) < segment;
}"""


def set_attempts(page: Page, attempts: int) -> None:
    """Let so many attempts think on after a proof."""
    if not page.is_visible("#attempts-wanted"):
        page.click("summary:has-text('How to think')")
    page.fill("#attempts-wanted", str(attempts))
    page.select_option("#policy", "fixed")


def test_stream_is_watched_segment_by_segment(page: Page):
    choose(page, "sudoku", HARD)
    set_attempts(page, 4)
    before = digits(page)
    page.click("#solve")
    expect(page.locator("#segment")).to_have_value(re.compile(r"^([89]|\d\d+)$"))
    assert page.inner_text("#verdict-title") == "Thinking …"
    assert digits(page) != before
    assert page.locator(".attempt").count() == 4
    assert re.search(r"margin|proven at \d+", page.inner_text(".attempt >> nth=1"))
    screen(page, "stream", after_ms=0)
    page.wait_for_function(PROVEN_BEFORE)
    page.click("#stop")
    assert digits(page) == before


def test_every_attempt_can_be_looked_at_and_every_segment_again(page: Page):
    choose(page, "sudoku-6x6", "Few givens")
    set_attempts(page, 3)
    page.fill("#segments-wanted", "6")
    page.click("#solve")
    verdict(page)
    last = digits(page)
    page.fill("#segment", "1")
    expect(page.locator("#segment-now")).to_have_text("1")
    assert digits(page) != last
    page.click(".attempt >> nth=2")
    assert page.get_attribute(".attempt >> nth=2", "aria-pressed") == "true"
    page.click("#play")
    expect(page.locator("#segment-now")).to_have_text("6")
    assert page.locator("#curve .margin").count() == 3


def test_each_step_shows_the_next_segment_of_a_whole_run(page: Page):
    choose(page, "sudoku-6x6", "Few givens")
    answers = []
    for segment in (1, 2):
        page.click("#step")
        verdict(page)
        assert figures(page)["Segments"] == f"{segment} of at most {segment}"
        assert "above" in figures(page)["How sure it was"]
        answers.append(digits(page))
    think_for(page, 3)
    solve(page)
    for segment, answer in enumerate(answers, 1):
        page.fill("#segment", f"{segment}")
        expect(page.locator("#segment-now")).to_have_text(f"{segment}")
        assert digits(page) == answer


def test_stop_cancels_the_puzzle_on_the_server(page: Page, site: Server):
    def is_idle() -> bool:
        slots = site.slots()
        num_active = sum(lane["lane"]["num_active"] for lane in slots["lanes"])
        return slots["waiting"] + num_active == 0

    choose(page, "sudoku", HARD)
    set_attempts(page, 16)
    page.click("#solve")
    page.wait_for_selector(".attempt")
    page.keyboard.press("Escape")
    assert page.inner_text("#verdict-title") == "Stopped"
    wait_for(is_idle)


def test_evaluation_runs_over_fresh_boards_pauses_and_is_exported(page: Page):
    choose(page, "maze-8x8")
    page.click("#tab-evaluation")
    page.select_option("#evaluate-difficulty", "hard")
    page.click("#evaluate")
    expect(page.locator(".evaluated").nth(7)).to_be_visible()
    page.click("#evaluate")
    expect(page.locator("#evaluate")).to_have_text("Go on")
    screen(page, "evaluation")
    num_right, num_boards = map(int, page.inner_text("#scores dd >> nth=0").split(" of "))
    assert page.locator(".evaluated").count() == num_boards >= 8
    page.check("#only-failures")
    assert page.locator(".evaluated").count() == num_boards - num_right
    with page.expect_download() as waiting:
        page.click("#evaluate-export")
    lines = lines_in(Path(waiting.value.path()).read_text())
    assert len(lines) == num_boards
    assert sum(line["answer"]["verified"] for line in lines) == num_right
    page.uncheck("#only-failures")
    page.click(".evaluated >> nth=0")
    assert page.is_visible("#puzzle")
    assert page.input_value("#text") == lines[-1]["puzzle"]


def test_operations_tab_shows_slots_queue_and_the_histogram_of_segments(page: Page, site: Server):
    """A batch keeps all slots of `sudoku` busy; leaving it cancels what is left."""
    choose(page, "sudoku-6x6", "Easy")
    page.click("#solve")
    verdict(page)
    page.click("#tab-operations")
    lane = page.locator("section[aria-label='Model sudoku']")
    line = json.dumps({"puzzle": HARDEST, "attempts": 16, "policy": "fixed"}) + "\n"
    with site.http.stream("POST", "/solve/batch", content=line * 100, headers=NDJSON):
        expect(lane.locator(".slot.busy")).to_have_count(4)
        assert "segment" in lane.locator(".slot.busy").first.inner_text()
    assert page.locator("section[aria-label='Model sudoku-6x6'] .bar").count() > 0
    assert page.inner_text(".tile >> nth=0").split("\n")[:2] == ["Engine", "ready"]
    solved = page.locator(".tile", has_text="Since the start").locator("dd").first
    assert int(solved.inner_text()) >= 1
    screen(page, "operations")


def figures(page: Page) -> dict[str, str]:
    names = page.locator("#figures dt").all_inner_texts()
    values = page.locator("#figures dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


MISPLACED_WORDS = """() => {
  const boxOf = node => node.getBoundingClientRect();
  const [chart, curve] = ["svg", ".margin"].map(part =>
    boxOf(document.querySelector(`#curve ${part}`)));
  return [...document.querySelectorAll("#curve text")].filter(text => {
    const { left, right, top, bottom } = boxOf(text);
    const isOutside = left < chart.left || right > chart.right || top < chart.top;
    const isAside = right < curve.left || left > curve.right;
    return isOutside || (!isAside && top < curve.bottom && bottom > curve.top);
  }).map(text => text.textContent);
}"""


def test_the_curve_shows_margin_and_proof(sized_page: Page):
    choose(sized_page, "sudoku-6x6", "Few givens")
    think_for(sized_page, 8)
    assert solve(sized_page) == "Proven"
    expect(sized_page.locator("#curve .proof-words")).to_have_text("proof found here")
    assert sized_page.inner_text("#margins figcaption").startswith("How sure it is")
    label = sized_page.get_attribute("#curve svg", "aria-label")
    assert "proof found after" in label
    assert sized_page.evaluate(MISPLACED_WORDS) == []
    sized_page.fill("#segment", "1")
    expect(sized_page.locator("#segment-now")).to_have_text("1")
    assert sized_page.locator("#curve .proof").count() == 0
    think_for(sized_page, 1)
    solve(sized_page)
    assert sized_page.is_visible("#playback")
    assert sized_page.is_hidden("#margins")


def test_figures_use_no_words_of_the_trade(page: Page):
    choose(page, "maze-8x8", "Long way")
    assert solve(page) == "Proven"
    named = figures(page)
    assert named["Its way"].endswith(" moves, the fewest possible")
    assert named["From Solve to answer"].endswith("s")
    assert "How sure it was" not in named
    choose(page, "logistics-6x6", "Main street")
    assert solve(page) == "Proven"
    assert figures(page)["Its way"] == "cost 24, the least possible"
