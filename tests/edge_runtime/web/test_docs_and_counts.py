"""The description of the API on a phone, and what the server has done before anybody looked."""

import pytest
from service_tools import Server
from visit_tools import PHONE, SIZES, Size, visit
from web_tools import Browser, expect, screen

pytestmark = pytest.mark.process

OPEN_ALL = "document.querySelectorAll('details').forEach(node => { node.open = true; })"
CUT_OFF = """[...document.querySelectorAll(".wide")]
    .filter(node => node.scrollWidth > node.clientWidth + 1)
    .map(node => node.textContent.slice(0, 80))"""


def test_docs_are_read_on_a_phone_without_scrolling_sideways(
    browser: Browser, site: Server
) -> None:
    with visit(browser, site, PHONE) as page:
        page.goto(f"{site.url}/docs")
        page.wait_for_selector("#schemas details")
        page.evaluate(OPEN_ALL)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        assert page.locator(".wide").count() > 10
        assert page.evaluate(CUT_OFF) == []
        page.locator("#paths details").first.scroll_into_view_if_needed()
        screen(page, f"docs-{PHONE[0]}", whole=False)


@pytest.mark.parametrize("size", SIZES)
def test_operations_count_what_was_solved_before_the_page_opened(
    browser: Browser, site: Server, size: Size
) -> None:
    assert site.solve("314...5..41.24...5..314....6.113.2.4").json()["status"] == "proven"
    with visit(browser, site, size, "/#operations") as page:
        tile = page.locator(".tile", has_text="Since the start")
        expect(tile).to_contain_text("stopped by a proof")
        assert int(tile.locator("dd").first.inner_text()) >= 1
