"""`import hrm_edge`: the shipped models from Python, in this process and through a server."""

import inspect
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import ran, rejected, succeeded
from odd_server import OPEN, SOLVED, Reply, answer, body, odd_server, refused
from service_tools import PATIENCE_S, USER, free_port, hrm_serve, write_key_file

import hrm_edge
from hrm_edge import solvers
from hrm_edge.cli import main
from hrm_edge.requests import requests_from
from hrm_edge_runtime.api.schema import SegmentView
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.factory import Choice, prepare
from hrm_puzzles import registry

SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MAZE = "S.......\n" + "........\n" * 6 + ".......G"
GRID = [[int(cell) for cell in SUDOKU.replace(".", "0")[row : row + 9]] for row in range(0, 81, 9)]
SMALL = ".2..6.51.3..3.2.5.65.24.16.5...3.4.6"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a key."""
    keys = write_key_file(tmp_path_factory.mktemp("keys"))
    with hrm_serve("sudoku", "--keys", keys, key=USER) as server:
        yield server.url


@pytest.fixture
def with_key(served: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HRM_API_KEY", USER)
    return served


def test_many_puzzles_of_several_kinds_keep_their_order_and_a_refusal_costs_only_its_own():
    first, refused, last = hrm_edge.solve_many([MAZE, SUDOKU[:-1], SUDOKU], max_segments=8)
    assert first.model == "maze-8x8"
    assert last.model == "sudoku"
    assert "the text has 80 cells instead of 81" in refused.message


def test_a_bundle_that_is_written_again_is_opened_again(tmp_path: Path):
    path = tmp_path / "my.bundle"
    for name, puzzle in {"sudoku-6x6": SMALL, "sudoku": SUDOKU}.items():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(find_bundle(name), path)
        os.utime(path / "manifest.json")  # a copy has the time of its original
        assert hrm_edge.solve(puzzle, bundle=path).status == "proven"


class Frame:
    """An array of another library, as PyTorch and pandas have."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return np.array(GRID)


FORMS = {
    "text": SUDOKU,
    "frame": Frame(),
    "rows": GRID,
    "tuples": tuple(map(tuple, GRID)),
    "array": np.array(GRID, np.int8),
    "array with NaN": np.where(GRID, GRID, np.nan),
    "request": hrm_edge.Request(puzzle=SUDOKU),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_puzzle_is_the_same_request(form: object):
    (request,) = requests_from([form], {})
    assert registry.get("sudoku").parse(request.puzzle).grid.tolist() == GRID


@pytest.mark.process
def test_key_from_argument_environment_or_file(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HRM_API_KEY", raising=False)
    with hrm_edge.Client(served) as client, pytest.raises(hrm_edge.ServerError) as refused:
        client.models()
    assert refused.value.status == 401
    monkeypatch.setenv("HRM_API_KEY", f"{USER}\n")  # as a mounted secret ends
    with hrm_edge.Client(served) as client:
        assert len(client.models()) == 1
    monkeypatch.setenv("HRM_API_KEY", "another")
    with pytest.raises(hrm_edge.UnreachableError, match="never writes") as unusable:
        hrm_edge.Client(served, api_key=f"{USER}\nb")
    assert USER not in str(unusable.value)
    with hrm_edge.Client(served, api_key=USER) as client:
        assert len(client.models()) == 1
    without = rejected(main, SUDOKU, "--url", served, status=3)
    assert without.startswith("hrm-solve: this server requires a key")
    for encoding in ("utf-8", "utf-16"):  # the second is PowerShell's
        (tmp_path / "key").write_text(f"{USER}\n", encoding=encoding)
        known = succeeded(main, SUDOKU, "--url", served, "--key-file", tmp_path / "key")
        assert known.stdout[:9] == "534678912"
    (tmp_path / "key").write_text("\n")
    assert "is empty" in rejected(main, SUDOKU, "--key-file", tmp_path / "key")


PROGRAMS = {
    "forked workers share a client": """
from multiprocessing import get_context
client = hrm_edge.Client(url)
client.solve(puzzle)
def status(_): return client.solve(puzzle).status
with get_context("fork").Pool(4) as pool: print({*pool.map(status, range(20))})""",
    "a thread outlives the main one": """
import threading
def first(): print({hrm_edge.Client(url).solve(puzzle).status})
threading.Thread(target=first).start()""",
}


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_may_use_a_client_in_its_workers_and_late(program: str, with_key: str):
    start = "import sys, hrm_edge; _, url, puzzle = sys.argv\n"
    done = ran(sys.executable, "-c", start + program, with_key, SUDOKU, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("{'proven'}\n", "")


def test_a_client_that_could_never_answer_is_not_made():
    with pytest.raises(ValueError, match="connections is 0: pass 1 or more"):
        hrm_edge.Client(connections=0)


def _closed() -> hrm_edge.Client:
    with hrm_edge.Client() as client:
        return client


ODD_STREAMS = {
    "no events": body(""),
    "no JSON": body("event: answer\ndata: nonsense\n\n"),
    "a long line": body(b"x" * (2 << 20)),
    "an unknown event": body('event: gossip\ndata: {"error": 1}\n\n'),
}


@pytest.mark.parametrize("reply", ODD_STREAMS.values(), ids=ODD_STREAMS)
def test_an_odd_stream_is_an_error_of_this_package(reply: Reply):
    with (
        odd_server(reply) as url,
        hrm_edge.Client(url) as client,
        pytest.raises(hrm_edge.Error),
    ):
        list(client.stream(SUDOKU))


def test_a_broken_stream_is_sent_again_and_yields_a_segment_once():
    view = SegmentView(segment=1, attempt=0, solution=OPEN, changed=[], margin=0.0, verified=False)
    seen = f"event: segment\ndata: {view.model_dump_json()}\n\n"
    rest = f"event: answer\ndata: {answer(SOLVED).model_dump_json()}\n\n"
    lost = f"event: error\ndata: {json.dumps(refused(1, reason='engine-lost'))}\n\n"
    replies = iter([body(seen * 2), body(""), body(lost), body(seen + rest)])
    with (
        odd_server(lambda handler: next(replies)(handler)) as url,
        hrm_edge.Client(url, patience_s=PATIENCE_S) as client,
    ):
        assert [*client.stream(SUDOKU)] == [view, view, answer(SOLVED)]


def test_a_puzzle_whose_answer_breaks_is_sent_again():
    whole = answer(SOLVED).model_dump_json()
    replies = iter([body(whole[:9], Content_length="99"), body(whole)])
    with (
        odd_server(lambda handler: next(replies)(handler)) as url,
        hrm_edge.Client(url, patience_s=PATIENCE_S) as client,
    ):
        assert client.solve(SUDOKU) == answer(SOLVED)


FAULTS = {
    "a short puzzle": lambda: hrm_edge.solve(SUDOKU[:-1]),
    "an unknown field": lambda: hrm_edge.solve(SUDOKU, atempts=2),
    "an unknown model": lambda: hrm_edge.solve(SUDOKU, model="another"),
    "no JSON": lambda: hrm_edge.solve({1, 2}),
    "not a number": lambda: hrm_edge.solve([float("nan")]),
    "no list": lambda: hrm_edge.solve_many(SUDOKU),
    "no bundle": lambda: hrm_edge.solve(SUDOKU, bundle="nowhere"),
    "nobody": lambda: hrm_edge.Client(f"127.0.0.1:{free_port()}").solve(SUDOKU),
    "a closed client": lambda: _closed().solve_many([SUDOKU] * 33),
    "no address": lambda: hrm_edge.Client("http://[::1"),
    "a list for a server": lambda: hrm_edge.Client().solve_many(SUDOKU),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_one_base_catches_every_error(fault: object):
    assert callable(fault)
    with pytest.raises(hrm_edge.Error, match=r"[;:] .*\.$"):  # the remedy
        fault()


def test_all_names_are_there_and_every_error_has_the_base():
    for name in hrm_edge.__all__:
        offered = getattr(hrm_edge, name)
        if inspect.isclass(offered) and issubclass(offered, Exception):
            assert issubclass(offered, hrm_edge.Error)
    assert "Error" in hrm_edge.__all__
    assert hrm_edge.__all__ == solvers.__all__
    assert set(hrm_edge.__all__) <= set(dir(hrm_edge))


def test_only_the_models_that_solve_prepare_an_engine(monkeypatch: pytest.MonkeyPatch):
    prepared = []

    def noted(bundle: Bundle, engine: str, **more: Any) -> Choice:
        prepared.append(bundle.manifest.name)
        return prepare(bundle, engine, **more)

    monkeypatch.setattr(solvers, "prepare", noted)
    solvers._opened.cache_clear()
    for _ in range(2):
        hrm_edge.solve(SUDOKU)
    assert prepared == ["sudoku"]
