"""The page of a server that requires keys, alone, in a fleet, and under a path of a proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proxy_tools import COMMANDS, proxied, proxy
from service_tools import ADMIN, Server, hrm_serve, write_key_file
from web_tools import BOARD, Browser, Page, Request, new_page, paste, solve

pytestmark = pytest.mark.process

QUESTION = "..4...5..4..2....5..31.....6.113.2.4"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = write_key_file(tmp_path_factory.mktemp("keys"))
    with hrm_serve("sudoku-6x6", "--slots=1", "--keys", keys, key=ADMIN) as server:
        yield server


@contextmanager
def visitor(browser: Browser, url: str) -> Iterator[Page]:
    """A page whose browser sends the key as its password."""
    credentials = {"username": "anybody", "password": ADMIN}
    with new_page(browser, http_credentials=credentials) as page:
        page.goto(url)
        page.wait_for_selector(BOARD)
        yield page


def test_page_loads_and_solves_with_the_key_as_password(browser: Browser, guarded: Server):
    with visitor(browser, guarded.url) as page:
        paste(page, QUESTION)
        assert solve(page) == "Proven"
        page.click("#tab-operations")
        page.wait_for_selector("#operations:visible")


@pytest.mark.parametrize("path", ["", "/hrm/"])
def test_the_page_works_behind_the_proxy(
    browser: Browser, guarded: Server, path: str, tmp_path: Path
):
    with proxy(tmp_path, [guarded], ADMIN) as url, visitor(browser, f"{url}{path}") as page:
        assert page.locator("#model option").count() > 1
        paste(page, QUESTION)
        assert solve(page) == "Proven"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_works_under_a_path(browser: Browser, guarded: Server, name: str, tmp_path: Path):
    outside = []

    def note(request: Request) -> None:
        if not request.url.startswith(f"{url}/"):
            outside.append(request.url)

    with (
        proxied(name, guarded, tmp_path, is_below=True) as url,
        visitor(browser, f"{url}/") as page,
    ):
        page.on("request", note)
        page.reload()
        page.wait_for_selector(BOARD)
        paste(page, QUESTION)
        assert solve(page) == "Proven", page.inner_text("#verdict")
        page.click("#tab-operations")
        page.wait_for_selector("#operations .lane")
        page.goto(f"{url}/docs")
        page.wait_for_selector("#examples option", state="attached")
    assert outside == []
