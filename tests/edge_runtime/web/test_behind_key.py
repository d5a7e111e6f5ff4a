"""The page of a server that requires keys: the browser asks for the password."""

import contextlib
from collections.abc import Iterator

import pytest
from service_tools import Server, command
from web_tools import Browser, Error, paste, verdict

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = pytest.mark.process

SECRET = new_secret()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Server]:
    del browser  # without one nothing is started
    keys = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(keys, [Key(label="kitchen", sha256=hash_of(SECRET))])
    served = command("serve", "sudoku-6x6", "--threads=1", "--slots=1", f"--keys={keys}")
    with Server(served, headers={"x-api-key": SECRET}) as server:
        server.wait_until_ready()
        yield server


def test_page_loads_and_solves_with_the_key_as_password(browser: Browser, guarded: Server) -> None:
    visitor = {"username": "anybody", "password": SECRET}
    with browser.new_context(http_credentials=visitor) as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(guarded.url)
        page.wait_for_selector("#board [role=gridcell]")
        paste(page, "..4...5..4..2....5..31.....6.113.2.4")
        page.click("#solve")
        assert verdict(page) == "Proven"
        page.click("#tab-operations")
        page.wait_for_selector("#operations:visible")
        assert faults == []


def test_page_stays_closed_without_the_key(browser: Browser, guarded: Server) -> None:
    stranger = {"username": SECRET, "password": "wrong"}
    with browser.new_context(http_credentials=stranger) as context:
        page = context.new_page()
        statuses: set[int] = set()
        page.on("response", lambda answer: statuses.add(answer.status))
        with contextlib.suppress(Error):  # a browser without the password calls that an error
            page.goto(guarded.url)
        assert statuses <= {401}
        assert page.locator("#board").count() == 0
