"""The page of a server that requires keys, alone and in a fleet: the browser asks for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proxy_tools import needs_haproxy, proxy
from service_tools import Server, command
from web_tools import Browser, Page, paste, solve

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = pytest.mark.process

SECRET = new_secret()
QUESTION = "..4...5..4..2....5..31.....6.113.2.4"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Server]:
    del browser  # without one nothing is started
    keys = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(keys, [Key(label="boss", sha256=hash_of(SECRET), role="admin")])
    served = command("serve", "sudoku-6x6", "--threads=1", "--slots=1", f"--keys={keys}")
    with Server(served, headers={"x-api-key": SECRET}) as server:
        server.wait_until_ready()
        yield server


@contextmanager
def visitor(browser: Browser, url: str) -> Iterator[Page]:
    """A page whose browser sends the key as its password."""
    credentials = {"username": "anybody", "password": SECRET}
    with browser.new_context(http_credentials=credentials) as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#board [role=gridcell]")
        yield page


def test_page_loads_and_solves_with_the_key_as_password(browser: Browser, guarded: Server) -> None:
    with visitor(browser, guarded.url) as page:
        paste(page, QUESTION)
        assert solve(page) == "Proven"
        page.click("#tab-operations")
        page.wait_for_selector("#operations:visible")


@needs_haproxy
def test_the_page_behind_the_proxy_lists_boards_and_solves(
    browser: Browser, guarded: Server, tmp_path: Path
) -> None:
    with proxy(tmp_path, [guarded], SECRET) as url, visitor(browser, url) as page:
        assert page.locator("#model option").count() > 1
        paste(page, QUESTION)
        assert solve(page) == "Proven"
