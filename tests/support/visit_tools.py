"""Visits to the page at the sizes of screens that people have."""

from collections.abc import Generator
from contextlib import contextmanager

from service_tools import Server
from web_tools import Browser, Page

Size = tuple[int, int]
LAPTOPS: list[Size] = [(1366, 768), (1440, 900)]
PHONE: Size = (390, 844)
SIZES = [LAPTOPS[0], PHONE]


@contextmanager
def visit(browser: Browser, site: Server, size: Size, address: str = "/") -> Generator[Page]:
    """A new visitor on a screen of that size; a script that fails, fails the test."""
    width, height = size
    is_phone = size == PHONE
    faults: list[str] = []
    with browser.new_context(
        viewport={"width": width, "height": height},
        has_touch=is_phone,
        is_mobile=is_phone,
        permissions=["clipboard-read", "clipboard-write"],
    ) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{site.url}{address}")
        page.wait_for_selector("#board [role=gridcell]", state="attached")
        yield page
    assert faults == []


def width_of(page: Page) -> int:
    assert page.viewport_size is not None
    return page.viewport_size["width"]


def require_no_sideways_scroll(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == width_of(page)
