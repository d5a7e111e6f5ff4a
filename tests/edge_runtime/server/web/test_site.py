"""`hrm site`: the page of a plain static host, under a path, which solves in the browser."""

import functools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_tools import rejected
from service_tools import command
from web_tools import (
    BOARD,
    PHONE,
    Browser,
    Page,
    digits,
    require_no_sideways_scroll,
    screen,
    verdict,
    visit,
)

from hrm_edge.client import in_order
from hrm_edge.solvers import Solver, from_bundles
from hrm_edge_runtime.api.schema import FreshRequest, SolveRequest
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_server.pages import fresh_puzzle
from hrm_edge_server.site import RUNTIME, main
from hrm_puzzles import registry

pytestmark = pytest.mark.process

PATH = "/some/path/"
MODELS = ("sudoku", "maze-8x8")
LINK = "#sudoku=53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
LEVELS = {"sudoku": ["easy", "medium", "minimal", "hard"], "maze-8x8": ["easy", "medium", "hard"]}
SAME = {"solution", "status", "how", "verified", "segments", "halted_by", "attempts", "route"}
CLOSE = 5e-5  # between two margins, while rounding has not added up
SHORT = 8  # segments
LONG = 64  # segments, after which the last bit of a carry may change what the server answers, too
ASK = """async ([path, bodies]) => {
    const { post } = await import(new URL("web/js/api.js", document.baseURI));
    const refused = ({ reason, cell, message }) => ({ reason, cell, message });
    const answers = [];
    for (const body of bodies) answers.push(await post(path, body).catch(refused));
    return answers;
}"""


class Static(NamedTuple):
    """A folder behind a plain HTTP server; `stop` ends the server."""

    url: str
    stop: Any


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[Static]:
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    try:
        yield Static(f"http://127.0.0.1:{server.server_address[1]}", stop)
    finally:
        stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose part some/path is a site; skips if npm's registry cannot be reached."""
    folder = tmp_path_factory.mktemp("host")
    building = command("site", f"{folder}{PATH}")
    ended = subprocess.run(building, capture_output=True, text=True)
    if "cannot be downloaded" in ended.stderr:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Static]:
    with served(folder) as host:
        yield host


@pytest.fixture(scope="module")
def phone(browser: Browser, host: Static) -> Iterator[Page]:
    """A phone that has opened a link."""
    with visit(browser, host, PHONE, f"{PATH}{LINK}") as page:
        yield page


def test_a_link_solves_itself_on_a_phone(phone: Page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    assert verdict(phone) == "Proven"
    assert "." not in digits(phone)
    require_no_sideways_scroll(phone)
    assert phone.is_hidden("#tab-operations")
    assert phone.inner_text("#about") == "Of 362 boards it had never seen, it got 82 % right."
    screen(phone, "site-390", whole=False)
    assert axe.run(phone).response["violations"] == []


def solver_here() -> Solver:
    """A server's solver, with the graphs that a site has."""
    bundles = [Bundle.open(find_bundle(name)) for name in MODELS]
    return from_bundles(bundles, "cpu:fp32", num_threads=1)


def boards_of(kind: str, count: int) -> list[Any]:
    """Fresh boards of all levels by turns, as the page sends them."""
    puzzle = registry.get(kind)
    levels = LEVELS[kind]
    boards = []
    for seed in range(count):
        level = levels[seed % len(levels)]
        fresh = fresh_puzzle(FreshRequest(kind=kind, difficulty=level, seed=1000 + seed))
        boards.append(puzzle.parse(fresh.puzzle).grid.tolist())
    return boards


MANY = pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])


@pytest.mark.parametrize("count", [5, MANY])
def test_the_browser_answers_as_a_server(phone: Page, count: int):
    """Without hypotheses, and smaller mazes in a frame too."""
    boards = {kind: boards_of(kind, count) for kind in MODELS}
    boards["maze-8x8"].append([[2, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 0], [3, 0, 0, 0]])
    solver = solver_here()
    for model, puzzles in boards.items():
        requests = [SolveRequest(puzzle=puzzle, model=model, how="plain") for puzzle in puzzles]
        expected = in_order(solver.solve_all(requests))
        bodies = [{"puzzle": puzzle, "model": model} for puzzle in puzzles]
        found = phone.evaluate(ASK, ["solve", bodies])
        for theirs, ours in zip(expected, found, strict=True):
            answer = theirs.model_dump(mode="json")
            if min(ours["segments"], answer["segments"]) <= LONG:
                assert {key: ours[key] for key in SAME} == {key: answer[key] for key in SAME}
            if ours["segments"] <= SHORT:
                assert abs(ours["margin"] - answer["margin"]) < CLOSE


NOTHING = [[0] * 9] * 8
REFUSED = [
    ("sudoku", [[0, 5, 0, 5, 0, 0, 0, 0, 0], *NOTHING]),
    ("maze-8x8", [[0, 0, 0, 3]] * 4),
    ("maze-8x8", [[2, 0, 0, 2], *[[0, 0, 0, 0]] * 2, [0, 0, 0, 3]]),
    ("maze-8x8", [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]]),
    ("maze-8x8", [[2, 4, 4, 0], [0, 0, 4, 0], [0, 4, 4, 0], [0, 3, 0, 0]]),
]


def test_the_browser_refuses_and_judges_as_a_server(phone: Page):
    solver = solver_here()
    bodies = [{"puzzle": puzzle, "model": model} for model, puzzle in REFUSED]
    bodies.append({"puzzle": boards_of("sudoku", 1)[0], "model": "sudoku", "max_segments": 129})
    maze = registry.get("maze-8x8")
    fresh = fresh_puzzle(FreshRequest(kind=maze.name, seed=1))
    question = maze.parse(fresh.puzzle).grid.tolist()
    answer = maze.parse(fresh.solution).grid.tolist()
    labels = [
        {"kind": maze.name, "puzzle": question, "solution": one} for one in (answer, question)
    ]
    refusals = phone.evaluate(ASK, ["solve", bodies])
    right, wrong = phone.evaluate(ASK, ["puzzle", labels])
    for body, ours in zip(bodies, refusals, strict=True):
        ((_, theirs),) = solver.solve_all([SolveRequest(**body)])
        expected = theirs.model_dump(mode="json", include={"reason", "cell"})
        assert {key: ours[key] for key in expected} == expected
    assert right == {"verified": True}
    assert wrong["reason"] == "bad-puzzle"


def test_a_second_visit_needs_no_network(phone: Page, host: Static):
    phone.evaluate("navigator.serviceWorker.ready")
    host.stop()
    phone.goto(f"{host.url}{PATH}?again")
    phone.wait_for_selector(BOARD)
    phone.select_option("#model", "maze-8x8")
    phone.click("#new")
    phone.click("#solve")
    assert verdict(phone) == "Proven"
    assert "no way is shorter" in phone.inner_text("#verdict")


def test_only_the_pinned_runtime_and_known_proofs_become_a_site(tmp_path: Path):
    out = tmp_path / "out"
    package = tmp_path / RUNTIME
    with served(tmp_path) as registry:
        assert "404" in rejected(main, out, "--registry", registry.url, status=3)
        package.parent.mkdir(parents=True)
        package.write_bytes(b"another program")
        sentence = rejected(main, out, "--registry", registry.url, status=3)
    assert "not the package that npm published" in sentence
    sentence = rejected(main, out, "--bundle", "arc-7x7")
    assert "arc-7x7, which the page cannot check" in sentence
    assert not out.exists()
