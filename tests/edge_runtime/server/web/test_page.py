"""The page for everybody: by keyboard, in the dark, on a phone, with bad input."""

import json
import re
from urllib.parse import urlsplit

import pytest
from service_tools import Server
from web_tools import (
    BOARD,
    DONE,
    PHONE,
    Browser,
    Error,
    Page,
    Route,
    cell,
    choose,
    digits,
    expect,
    new_page,
    require_no_sideways_scroll,
    screen,
    verdict,
    visit,
)

pytestmark = pytest.mark.process

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

SHOWN = (
    ("light", "sudoku-6x6", "puzzle"),
    ("dark", "logistics-6x6", "puzzle"),
    ("light", "arc-7x7", "puzzle"),
    ("light", "maze-8x8", "set"),
    ("light", "maze-8x8", "evaluation"),
    ("dark", "maze-8x8", "operations"),
)


MOST_STOPS = 20  # of the Tab key, from one thing to the next


def tab_to(page: Page, selector: str) -> None:
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.matches('{selector}')"):
            return
    pytest.fail(f"Tab does not reach {selector}")


def test_puzzle_is_typed_and_solved_by_keyboard_alone(page: Page):
    tab_to(page, "[role=gridcell]")
    page.keyboard.press("End")
    page.keyboard.press("ArrowDown")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("Row 2, column 6")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    page.keyboard.type("..4...5..4..2....5..31.....6.113.2.4")
    page.keyboard.press("Enter")
    assert verdict(page) == "Proven"
    assert "." not in digits(page)
    tab_to(page, "#step")
    page.keyboard.press("Enter")
    verdict(page)
    expect(page.locator("#segment")).to_have_attribute("max", "1")
    page.keyboard.press("Enter")
    verdict(page)
    tab_to(page, "#segment")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#segment-now")).to_have_text("1")
    page.focus("#tab-puzzle")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#set")


def test_bad_input_shows_the_sentence_of_the_server_at_the_cell(page: Page, site: Server):
    choose(page, "sudoku", "Newspaper")
    cell(page, 5, 5).click()
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    text = page.evaluate("document.querySelector('#text').value")
    error = site.solve(text, kind="sudoku").json()["error"]
    sentence = f"{error['message'][0].upper()}{error['message'][1:]}; {error['remedy']}."
    row, col = error["cell"]
    assert page.inner_text(".bubble") == sentence
    assert cell(page, row, col).get_attribute("aria-invalid") == "true"
    screen(page, "bad-input")
    page.keyboard.press("Delete")
    assert page.is_hidden(".bubble")


def test_what_a_server_sends_is_never_markup(page: Page):
    def hostile(route: Route) -> None:
        error = {"reason": EVIL, "message": EVIL, "remedy": EVIL, "cell": [1, 1]}
        route.fulfill(status=422, json={"error": error})

    page.route("**/solve/stream", hostile)
    page.click("#solve")
    page.wait_for_selector(DONE)
    assert EVIL in page.inner_text(".bubble")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "HRM Edge"


def test_policy_forbids_foreign_hosts_and_markup(browser: Browser, site: Server):
    policy = site.http.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    hosts = set()
    with new_page(browser) as page:
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"{site.url}/docs")
        page.goto(site.url)
        page.wait_for_selector(BOARD)
        with pytest.raises(Error, match="TrustedHTML"):
            page.evaluate("document.body.innerHTML = '<p>markup</p>'")
    assert hosts - {""} == {urlsplit(site.url).netloc}


@pytest.mark.parametrize(
    ("is_lost", "words"),
    [(True, "The server cannot be reached"), (False, "The connection ended before the answer")],
)
def test_a_lost_server_is_reported(page: Page, is_lost: bool, words: str):
    def break_off(route: Route) -> None:
        if is_lost:
            route.abort()
        else:
            body = "event: segment\ndata: {"
            route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/solve/stream", break_off)
    page.click("#solve")
    expect(page.locator("#verdict-text")).to_contain_text(words)


def test_docs_send_an_example_and_show_the_answer(page: Page, site: Server):
    tabs = page.locator("[role=tab]").all_inner_texts()
    page.goto(f"{site.url}/docs")
    assert page.locator("header a").all_inner_texts() == [*map(str.strip, tabs), "API"]
    page.select_option("#examples", "maze-8x8")
    page.click("#send")
    expect(page.locator("#sent")).to_have_text("200 OK")
    expect(page.locator("#said")).not_to_be_empty()
    answer = json.loads(page.inner_text("#said"))
    assert (answer["model"], answer["route"]["cost"]) == ("maze-8x8", answer["route"]["optimum"])
    assert page.inner_text("#example").startswith(f"curl {site.url}/solve -d '{{")
    page.fill("#body", "{}")
    page.click("#send")
    expect(page.locator("#sent")).to_have_text(re.compile("^422"))
    page.locator("#send").scroll_into_view_if_needed()
    screen(page, "docs", whole=False)
    page.click("header a >> text=Evaluate")
    page.wait_for_selector("#evaluation:visible")


def test_axe_finds_no_violation(browser: Browser, site: Server):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with visit(browser, site, PHONE, bypass_csp=True) as page:

        def check(name: str) -> None:
            violations = axe.run(page).response["violations"]
            assert [finding["id"] for finding in violations] == [], name
            require_no_sideways_scroll(page)

        for scheme, model, tab in SHOWN:
            page.emulate_media(color_scheme=scheme)
            page.select_option("#model", model)
            page.click(f"#tab-{tab}")
            check(f"{scheme}, {model}, {tab}")
        page.goto(f"{site.url}/docs")
        page.wait_for_selector("#examples option", state="attached")
        check("docs")
