"""`hrm-solve` over many puzzles: every form is read, every puzzle gets its end once, whatever stops the run."""

import io
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from scripted_server import examples
from service_tools import PATIENCE_S, command, free_port, running, wait_for
from solving_tools import OPEN, PUZZLE, SOLVED, answer, solver_of

from hrm_edge_runtime.api.schema import ErrorDetail, SolveRequest
from hrm_edge_runtime.solve.client import Client, RetryPolicy, UnavailableError
from hrm_edge_runtime.solve.output import Tally, continued, record_of
from hrm_edge_runtime.solve.puzzles import Entry, SolvingError, entries, opened
from hrm_edge_runtime.solve.solvers import Reply, options_of, solve_in_order

# --- what is read


@pytest.mark.parametrize(
    ("text", "puzzles"),
    [
        (f"{SOLVED}\n\n# a remark\n{OPEN}\n", [SOLVED, OPEN]),
        ("1234\n3412\n2143\n4321\n", ["1234\n3412\n2143\n4321"]),
        (f"source,question,answer,rating\na,{OPEN},{SOLVED},7\nb,{SOLVED},{SOLVED},0\n", [OPEN, SOLVED]),
        (f'{{"puzzle": "{OPEN}", "attempts": 4}}\r\n{{"puzzle": "{SOLVED}", "solution": "x"}}\n', [OPEN, SOLVED]),
        (f'[{{"puzzle": "{OPEN}", "solution": "{SOLVED}"}}, {{"puzzle": "{SOLVED}"}}]', [OPEN, SOLVED]),
        ("[\n [1, 2, 3, 4],\n [3, 4, 1, 2],\n [2, 1, 4, 3],\n [4, 3, 2, 1]\n]\n", [[[1, 2, 3, 4], [3, 4, 1, 2],
         [2, 1, 4, 3], [4, 3, 2, 1]]]),
        ('{"task": "t", "input": [[0, 7], [7, 7]]}\n', [{"task": "t", "input": [[0, 7], [7, 7]]}]),
        ("", []),
    ],
)  # fmt: skip
def test_every_form_of_a_file_gives_its_puzzles_in_their_order(
    text: str, puzzles: list[object]
) -> None:
    found = list(entries(io.StringIO(text, newline=""), PUZZLE.seq_len))
    assert [entry.puzzle for entry in found] == puzzles
    assert [entry.number for entry in found] == list(range(1, len(puzzles) + 1))


def test_a_solution_in_the_file_is_known_and_never_sent() -> None:
    lines = ["source,question,answer,rating", f"a,{OPEN},{SOLVED},7"]
    (entry,) = entries(lines, 16)
    assert (entry.known, dict(entry.fields)) == (SOLVED, {"puzzle": OPEN})


def test_a_long_file_is_read_while_it_is_solved() -> None:
    lines = iter([f"{SOLVED}\n"] * 10_000)
    next(entries(lines, 16))
    assert len(list(lines)) > 9_800


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            f"source,question,answer,rating\na,{'1' * 140_000},1,0\n".encode(),
            "field larger than field limit",
        ),
        (
            f'source,question,answer,rating\na,"{"1" * 140_000}\n'.encode(),
            "field larger than field limit",
        ),
        (b"1" * (1 << 24) + b"1\n", "line 1 has more than 16777216 characters"),
        (SOLVED.encode("utf-16"), "invalid start byte"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "puzzles").write_bytes(content)
    with (
        opened(str(tmp_path / "puzzles"), PUZZLE.seq_len) as found,
        pytest.raises(
            SolvingError, match=f"cannot be read .*{said}.*: give a text file of puzzles"
        ),
    ):
        list(found)


@pytest.mark.parametrize(
    "form", [f"{SOLVED}\n", f'{{"puzzle": "{SOLVED}"}}\n', f"source,question\na,{SOLVED}\n"]
)
def test_a_byte_order_mark_is_no_part_of_a_puzzle(form: str, tmp_path: Path) -> None:
    (tmp_path / "puzzles").write_text(form, encoding="utf-8-sig")
    with opened(str(tmp_path / "puzzles"), PUZZLE.seq_len) as found:
        assert [entry.puzzle for entry in found] == [SOLVED]
    (by_pipe,) = entries(io.StringIO(f"\ufeff{form}"), PUZZLE.seq_len)
    assert by_pipe.puzzle == SOLVED


@pytest.mark.parametrize("depth", [60, 900, 100_000])
def test_a_line_that_is_nested_without_end_costs_only_itself(depth: int) -> None:
    deep = f'{{"puzzle": {"[" * depth}{"]" * depth}}}\n'
    given = list(entries([f"{SOLVED}\n", deep, f"{SOLVED}\n"], PUZZLE.seq_len))
    assert [entry.puzzle for entry in given] == [SOLVED, deep.rstrip(), SOLVED]
    assert json.dumps(record_of(given[1], answer(given[1].puzzle)))


# --- the run


def test_outcomes_leave_in_the_order_of_their_puzzles_and_bad_lines_cost_themselves() -> None:
    asked: list[SolveRequest] = []

    def backwards(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
        asked.extend(requests)
        yield from reversed(
            [(position, answer(request.puzzle)) for position, request in enumerate(asked)]
        )

    fields: list[dict[str, object]] = [
        {"puzzle": "a"},
        {"puzzle": "b", "attempts": "many"},
        {"puzzle": "c", "attempts": 2},
    ]
    given = [Entry(number=number, fields=one) for number, one in enumerate(fields, 1)]
    outcomes = list(solve_in_order(solver_of(backwards), iter(given), options_of({"attempts": 7})))
    assert [entry.number for entry, _ in outcomes] == [1, 2, 3]
    assert [request.attempts for request in asked] == [7, 2]
    refused = outcomes[1][1]
    assert isinstance(refused, ErrorDetail)
    assert refused.field == "attempts"


# --- the output file


def write_all(path: Path, puzzles: list[str]) -> Tally:
    tally = Tally()
    given = iter(
        [
            Entry(number=number, fields={"puzzle": puzzle})
            for number, puzzle in enumerate(puzzles, 1)
        ]
    )
    with continued(path) as ledger:
        ledger.skip_answered(given, tally)
        for entry in given:
            record = record_of(entry, answer(entry.puzzle))
            ledger.write(record)
            tally.add(record)
    return tally


def test_a_file_cut_off_anywhere_is_continued_to_the_same_file(tmp_path: Path) -> None:
    puzzles = [SOLVED, OPEN, SOLVED]
    whole_path = tmp_path / "whole"
    assert write_all(whole_path, puzzles).num_puzzles == 3
    whole = whole_path.read_bytes()
    for length in range(0, len(whole), 7):
        path = tmp_path / "part"
        path.write_bytes(whole[:length])
        assert write_all(path, puzzles).num_puzzles == 3
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "text", ["my diary\n", "my diary", '{"number": 2, "puzzle": "x", "answer": {}}\n']
)
def test_somebody_elses_file_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(SolvingError, match="cannot be continued"):
        write_all(path, [SOLVED])
    assert path.read_text() == text


def test_answers_to_other_puzzles_are_not_continued(tmp_path: Path) -> None:
    write_all(tmp_path / "out", [SOLVED, SOLVED])
    with pytest.raises(SolvingError, match="its line 2 does not answer the puzzle"):
        write_all(tmp_path / "out", [SOLVED, OPEN, SOLVED])


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        continued(tmp_path / "out"),
        pytest.raises(SolvingError, match="another run"),
        continued(tmp_path / "out"),
    ):
        pass


@pytest.mark.process
def test_a_run_killed_at_any_moment_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """Against a real server, killed outright each time its file has grown: at last every puzzle stands there once."""
    questions = list(examples()) * 30
    source, out = tmp_path / "many.txt", tmp_path / "out.ndjson"
    source.write_text("\n".join(questions))
    with running(step_s=0.002, slots=4) as server:
        server.wait_until_ready()
        begin = command("solve", source, "--url", server.url, "--out", out)
        for _ in range(2):
            before = out.stat().st_size if out.exists() else 0
            process = subprocess.Popen(begin, stderr=subprocess.DEVNULL)
            wait_for(
                lambda least=before: out.exists() and out.stat().st_size > least, every_s=0.005
            )
            process.kill()
            process.wait()
        torn = out.read_bytes()
        assert 0 < torn.count(b"\n") < len(questions)
        out.write_bytes(torn + b'{"number": ')  # as a kill in the middle of a line would leave it
        done = subprocess.run(
            [*begin, "--json"], capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["number"] for record in records] == list(range(1, len(questions) + 1))
    assert [record["answer"]["solution"] for record in records] == [
        examples()[question] for question in questions
    ]
    assert out.read_bytes().startswith(torn)
    counts = json.loads(done.stdout)
    assert (counts["puzzles"], counts["solved"], counts["proven"], counts["refused"]) == (
        240,
        240,
        240,
        {},
    )


# --- a server that is not always there


def test_pauses_are_drawn_however_long_a_server_stays_away() -> None:
    policy = RetryPolicy(limit_s=1e9, rng=random.Random(0))
    assert all(0 <= (policy.pause_s() or 0) <= 30 for _ in range(3000))


@pytest.mark.process
def test_an_engine_that_dies_and_a_server_that_restarts_lose_no_puzzle(tmp_path: Path) -> None:
    questions = list(examples()) * 10
    source, out = tmp_path / "many.txt", tmp_path / "out.ndjson"
    source.write_text("\n".join(questions))
    with running(step_s=0.01, slots=2) as server:
        server.wait_until_ready()
        process = subprocess.Popen(
            command("solve", source, "--url", server.url, "--out", out), stderr=subprocess.DEVNULL
        )
        wait_for(lambda: out.exists() and out.stat().st_size > 0)
        os.kill(server.slots()["engine"]["pid"], signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 0
    assert [json.loads(line)["number"] for line in out.read_text().splitlines()] == list(
        range(1, 81)
    )


@pytest.mark.process
def test_a_server_that_is_gone_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    source, out = tmp_path / "many.txt", tmp_path / "out.ndjson"
    source.write_text("\n".join(list(examples()) * 40))
    with running(step_s=0.005) as server:
        server.wait_until_ready()
        begin = command("solve", source, "--url", server.url, "--out", out, "--patience", 0.5)
        process = subprocess.Popen(begin, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: out.exists() and out.stat().st_size > 0)
        os.killpg(server.process.pid, signal.SIGKILL)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "start hrm-serve there" in told
    assert all("answer" in json.loads(line) for line in out.read_text().splitlines())


def test_pauses_grow_are_random_and_never_shorter_than_asked_for() -> None:
    drawn = [RetryPolicy(limit_s=1e9, rng=random.Random(seed)) for seed in range(50)]
    rounds = [[policy.pause_s() for policy in drawn] for _ in range(8)]
    assert all(max(later) > max(sooner) for sooner, later in itertools.pairwise(rounds[:6]))
    assert len(set(rounds[3])) == 50
    assert max(rounds[-1]) <= 30.0
    assert min(policy.pause_s(40.0) for policy in drawn) >= 40.0
    assert RetryPolicy(limit_s=3.0, rng=random.Random(0)).pause_s(4.0) is None


def test_retry_after_is_honoured() -> None:
    moments: list[float] = []

    class NotNow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            moments.append(time.monotonic())
            self.send_response(429 if len(moments) < 3 else 200)
            self.send_header("Retry-After", "1")
            body = b'{"models": []}' if len(moments) == 3 else b"{}"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", free_port()), NotNow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with Client(url, patience_s=30.0, rng=random.Random(1)) as client:
        assert client.models() == []
    assert min(moments[1] - moments[0], moments[2] - moments[1]) >= 1.0
    moments.clear()
    with Client(url) as client, pytest.raises(UnavailableError):
        client.models()
    server.shutdown()
    server.server_close()
