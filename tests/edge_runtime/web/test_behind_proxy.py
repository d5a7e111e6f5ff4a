"""The page of a fleet: what a visitor needs passes the proxy, and operators' routes do not."""

from collections.abc import Iterator

import httpx
import pytest
from proxy_tools import needs_haproxy, proxy
from service_tools import Server, command
from web_tools import Browser, paste, solve

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = [pytest.mark.process, needs_haproxy]

SECRET = new_secret()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "keys"
    write_keys(keys, [Key(label="boss", sha256=hash_of(SECRET), role="admin")])
    served = command("serve", "sudoku-6x6", "--threads=1", f"--keys={keys}")
    with Server(served, headers={"x-api-key": SECRET}) as board:
        board.wait_until_ready()
        with proxy(folder, [board], SECRET) as url:
            yield url


def test_the_page_behind_the_proxy_lists_boards_and_solves(browser: Browser, fleet: str) -> None:
    credentials = {"username": "anybody", "password": SECRET}
    with browser.new_context(http_credentials=credentials) as context:
        page = context.new_page()
        page.goto(fleet)
        page.wait_for_selector("#board [role=gridcell]")
        assert page.locator("#model option").count() > 1
        paste(page, "..4...5..4..2....5..31.....6.113.2.4")
        assert solve(page) == "Proven"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("PUT", "/models/other"),
        ("DELETE", "/models/sudoku-6x6"),
        ("POST", "/models"),
        ("GET", "/nothing"),
        ("GET", "/solve"),
    ],
)
def test_what_is_not_a_clients_route_gets_404(fleet: str, method: str, path: str) -> None:
    answer = httpx.request(method, fleet + path, headers={"x-api-key": SECRET}, json={})
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/models", "/kinds", "/puzzle?kind=sudoku-6x6", "/slots"])
def test_what_the_page_reads_passes(fleet: str, path: str) -> None:
    assert httpx.get(fleet + path, headers={"x-api-key": SECRET}).status_code == 200
