"""The page for everybody: by keyboard alone, in the dark, on a phone, with bad input, and with a hostile server."""

import json
import re

import pytest
from service_tools import Server
from web_tools import (
    DONE,
    Browser,
    Error,
    Page,
    Route,
    cell,
    choose,
    digits,
    expect,
    paste,
    screen,
    solve,
    verdict,
)

pytestmark = pytest.mark.process

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

UNNAMED = """[...document.querySelectorAll("button, input, select, textarea, [role=grid], [role=gridcell], [role=img]")]
    .filter(node => !(node.ariaLabel || node.labels?.length || node.textContent.trim()))
    .map(node => node.outerHTML)"""
SHADES = """names => names.map(name => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return colour;
})"""
INKS = (
    *(
        ("ink", "paper"),
        ("quiet", "ground"),
        ("quiet", "sunk"),
        ("answer", "paper"),
        ("on-accent", "accent"),
    ),
    *(("good", "good-ground"), ("bad", "bad-ground"), ("open", "open-ground")),
)


def test_puzzle_is_typed_and_solved_by_keyboard_alone(page: Page) -> None:
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
            break
    page.keyboard.press("End")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Row 2, column 6"
    )
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    page.keyboard.type("..4...5..4..2....5..31.....6.113.2.4")
    page.keyboard.press("Enter")
    assert verdict(page) == "Proven"
    assert "." not in digits(page)


def test_tabs_are_walked_with_the_arrow_keys(page: Page) -> None:
    page.focus("#tab-puzzle")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#set")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#evaluation")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#operations")
    assert page.url.endswith("#operations")


def test_bad_input_shows_the_sentence_of_the_server_at_the_cell(page: Page, site: Server) -> None:
    choose(page, "sudoku", "Newspaper")
    cell(page, 5, 5).click()
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    error = site.solve(
        page.evaluate("document.querySelector('#text').value"), kind="sudoku"
    ).json()["error"]
    sentence = f"{error['message'][0].upper()}{error['message'][1:]}; {error['remedy']}."
    row, col = error["cell"]
    assert page.inner_text(".bubble") == sentence
    assert cell(page, row, col).get_attribute("aria-invalid") == "true"
    screen(page, "bad-input")
    page.keyboard.press("Delete")
    assert page.is_hidden(".bubble")


def test_pasted_text_with_a_bad_character_is_explained_by_the_server(page: Page) -> None:
    paste(page, "314...5..x1.24...5..314....6.113.2.4")
    page.wait_for_selector(DONE)
    assert page.inner_text("#verdict-text").startswith("The cell at row 2, column 4 is 'x'")
    assert cell(page, 2, 4).get_attribute("aria-invalid") == "true"


def test_text_of_another_size_leaves_the_board_and_says_what_is_expected(page: Page) -> None:
    before = digits(page)
    paste(page, "314125")
    page.wait_for_selector(DONE)
    assert "36" in page.inner_text("#verdict-text")
    assert digits(page) == before


def test_dark_mode_follows_the_system_and_the_choice(page: Page) -> None:
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    page.click("#theme")
    assert ground() == light
    page.click("#theme")
    assert ground() == dark
    page.reload()
    assert ground() == dark
    choose(page, "logistics-6x6", "Round trip")
    solve(page)
    screen(page, "dark")


def test_text_has_enough_contrast_in_both_schemes(page: Page) -> None:
    """WCAG 2.2 AA asks for 4.5 : 1."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for ink, ground in INKS:
            assert contrast(page, ink, ground) >= 4.5, (scheme, ink, ground)


def contrast(page: Page, *names: str) -> float:
    shades = page.evaluate(SHADES, names)
    weights = (0.2126, 0.7152, 0.0722)
    dark, light = sorted(
        sum(w * linear(c) for w, c in zip(weights, shade, strict=True)) for shade in shades
    )
    return (light + 0.05) / (dark + 0.05)


def linear(channel: float) -> float:
    share = channel / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def test_every_control_has_a_name_and_no_id_stands_twice(page: Page) -> None:
    for model in ("sudoku-6x6", "maze-8x8", "arc-colours"):
        choose(page, model)
        assert page.evaluate(UNNAMED) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(ids) == len(set(ids))


def test_phone_sees_all_of_the_board_without_scrolling_sideways(
    browser: Browser, site: Server
) -> None:
    with browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    ) as phone:
        page = phone.new_page()
        page.goto(f"{site.url}/#puzzle")
        page.wait_for_selector("#board [role=gridcell]")
        choose(page, "maze-8x8", "Round the block")
        page.tap("label.brush:has-text('Wall')")
        cell(page, 2, 2).tap()
        assert "wall" in (cell(page, 2, 2).get_attribute("class") or "")
        cell(page, 2, 2).tap()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.tap("#solve")
        assert verdict(page) == "Proven"
        assert page.is_visible("#verdict")
        screen(page, "phone", whole=False)


def test_what_a_server_says_is_never_markup(page: Page) -> None:
    def hostile(route: Route) -> None:
        error = {"reason": EVIL, "message": EVIL, "remedy": EVIL, "cell": [1, 1]}
        route.fulfill(status=422, json={"error": error})

    page.route("**/solve/stream", hostile)
    page.click("#solve")
    page.wait_for_selector(DONE)
    assert EVIL in page.inner_text(".bubble")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "HRM Edge"


def test_policy_forbids_inline_script_foreign_hosts_and_markup_from_strings(
    browser: Browser, site: Server
) -> None:
    policy = site.http.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(site.url)
        with pytest.raises(Error, match="TrustedHTML"):
            page.evaluate("document.body.innerHTML = '<p>markup</p>'")


def test_page_asks_nobody_but_its_own_server(browser: Browser, site: Server) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site.url}/docs")
        page.goto(site.url)
        page.wait_for_selector("#board [role=gridcell]")
        assert {url.split("/")[2] for url in asked if not url.startswith("data:")} == {
            site.url.split("/")[2]
        }


def test_lost_server_is_said_in_words(page: Page) -> None:
    page.route("**/solve/stream", lambda route: route.abort())
    page.click("#solve")
    expect(page.locator("#verdict-text")).to_contain_text("The server cannot be reached")


def test_stream_that_breaks_off_is_said_in_words(page: Page) -> None:
    segment = {
        "segment": 1,
        "attempt": 0,
        "solution": [[1] * 6] * 6,
        "changed": [],
        "margin": 0.0,
        "verified": False,
    }
    body = f"event: segment\ndata: {json.dumps(segment)}\n\nevent: segment\ndata: {{"
    page.route(
        "**/solve/stream",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )
    page.click("#solve")
    expect(page.locator("#verdict-text")).to_contain_text("The connection ended before the answer")


def test_docs_send_an_example_and_show_the_answer(page: Page, site: Server) -> None:
    page.goto(f"{site.url}/docs")
    page.select_option("#examples", "maze-8x8, object")
    page.click("#send")
    expect(page.locator("#sent")).to_have_text("200 OK")
    answer = json.loads(page.inner_text("#said"))
    assert (answer["model"], answer["route"]["cost"]) == ("maze-8x8", answer["route"]["optimum"])
    assert page.inner_text("#example").startswith(f"curl {site.url}/solve -d '{{")
    page.fill("#body", "{}")
    page.click("#send")
    expect(page.locator("#sent")).to_have_text(re.compile("^422"))
    page.locator("#send").scroll_into_view_if_needed()
    screen(page, "docs", whole=False)


def test_no_page_has_a_serious_finding_of_axe(browser: Browser, site: Server) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True) as context:
        page = context.new_page()
        page.goto(site.url)
        page.wait_for_selector("#board [role=gridcell]")
        found: list[tuple[str, str, str]] = []
        for model, tab in (
            *(("sudoku-6x6", "puzzle"), ("logistics-6x6", "puzzle"), ("arc-7x7", "puzzle")),
            *(
                ("maze-8x8", "set"),
                ("maze-8x8", "evaluation"),
                ("maze-8x8", "operations"),
                ("", "docs"),
            ),
        ):
            if tab == "docs":
                page.goto(f"{site.url}/docs")
                page.wait_for_selector("#examples option", state="attached")
            else:
                page.select_option("#model", model)
                page.click(f"#tab-{tab}")
            violations = axe.run(page).response["violations"]
            found += [
                (model, tab, one["id"])
                for one in violations
                if one["impact"] in ("serious", "critical")
            ]
            assert page.evaluate("document.documentElement.scrollWidth") == 390, tab
        assert found == []
