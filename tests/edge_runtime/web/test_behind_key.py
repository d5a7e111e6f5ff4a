"""The page where the server asks for keys: a browser asks its visitor for the password, and the page then works."""

import contextlib
from collections.abc import Iterator

import pytest
from service_tools import Server, command
from web_tools import Browser, Error, paste, verdict

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = pytest.mark.process

SECRET = new_secret()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Server]:  # noqa: ARG001
    keys = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(keys, [Key(label="kitchen", sha256=hash_of(SECRET))])
    served = command("serve", "sudoku-6x6", "--threads=1", f"--keys={keys}")
    with Server(served, headers={"x-api-key": SECRET}) as server:
        server.wait_until_ready()
        yield server


def test_page_loads_and_solves_with_the_key_as_password(browser: Browser, guarded: Server) -> None:
    with browser.new_context(
        http_credentials={"username": "anybody", "password": SECRET}
    ) as context:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        answer = page.goto(guarded.url)
        assert answer is not None
        assert answer.status == 200
        page.wait_for_selector("#board [role=gridcell]")
        paste(page, "..4...5..4..2....5..31.....6.113.2.4")
        page.click("#solve")
        assert verdict(page) == "Proven"
        page.click("#tab-operations")
        page.wait_for_selector("#operations:visible")
        assert page.goto(f"{guarded.url}/docs").status == 200  # type: ignore[union-attr]
        assert faults == []


@pytest.mark.parametrize("credentials", [None, {"username": SECRET, "password": "wrong"}])
def test_page_stays_closed_without_the_key(
    browser: Browser, guarded: Server, credentials: dict[str, str]
) -> None:
    with browser.new_context(http_credentials=credentials) as context:  # type: ignore[arg-type]
        page = context.new_page()
        statuses: list[int] = []
        page.on("response", lambda answer: statuses.append(answer.status))
        with contextlib.suppress(
            Error
        ):  # a browser that nobody tells a password calls that an error
            page.goto(guarded.url)
        assert set(statuses) <= {401}
        assert page.locator("#board").count() == 0
