"""`hrm-solve` over many puzzles: every form is read, and every puzzle ends once."""

import io
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cli_tools import ran, rejected, succeeded
from files import lines_in
from odd_server import OPEN, REFUSAL, SOLVED, answer, body, lines, odd_server
from scripted_server import PUZZLE, examples
from service_tools import PATIENCE_S, Server, command, free_port, running, wait_for

from hrm_edge import client
from hrm_edge.cli import main
from hrm_edge.client import Client, RetryPolicy
from hrm_edge.errors import UnavailableError
from hrm_edge.output import Tally, continued, summary
from hrm_edge.puzzles import (
    Entry,
    SolvingError,
    entries_of,
    is_many,
    numbered,
    require_file,
)
from hrm_edge.requests import RequestOrRefusal
from hrm_edge.solvers import Reply, SolveAll, Solver, options_of, solve_in_order
from hrm_edge_runtime.api.schema import ErrorDetail
from hrm_puzzles import registry
from hrm_puzzles.reading.records import records_in

CSV = "source,question,answer,rating\n"


def solver_of(solve_all: SolveAll) -> Solver:
    return Solver(puzzles={"m": PUZZLE}, solve_all=solve_all)


def test_a_solution_in_the_file_is_known_and_never_sent():
    (entry,) = numbered(records_in([CSV, f"a,{OPEN},{SOLVED},7"], [PUZZLE], name="the text"))
    assert (entry.known, dict(entry.fields)) == (SOLVED, {"puzzle": OPEN})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_is_read_as_a_file(encoding: str, monkeypatch: pytest.MonkeyPatch):
    content = io.BytesIO(f"{OPEN}\r\n{OPEN}\r\n".encode(encoding))
    piped = io.TextIOWrapper(io.BufferedReader(content), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", piped)
    assert [entry.puzzle for entry in entries_of("-", [PUZZLE])] == [OPEN, OPEN]


@pytest.mark.parametrize("text", ["盤" * 240, f"║{'═' * 200}║\n{OPEN}", "." * 252 + ".ABC"])
def test_a_board_is_not_taken_for_the_name_of_a_file(text: str):
    require_file(text)
    assert not is_many(text)


def test_a_long_file_is_read_while_it_is_solved():
    lines = iter([f"{SOLVED}\n"] * 10_000)
    next(numbered(records_in(lines, [PUZZLE], name="the text")))
    assert len(list(lines)) > 9_800


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{CSV}a,{'1' * 140_000},1,0\n".encode(), "field larger than field limit"),
        (b"1" * (1 << 24) + b"1\n", "line 1 has more than 16777216 characters"),
        (SOLVED.encode("utf-16-le"), "it holds zero bytes"),
    ],
    ids=["field", "line", "encoding"],
)
def test_an_unreadable_file_is_one_sentence(content: bytes, said: str, tmp_path: Path):
    (tmp_path / "puzzles").write_bytes(content)
    error = f"line [12]: .*{said}.*; write one puzzle in each line"
    with pytest.raises(SolvingError, match=error):
        list(entries_of(str(tmp_path / "puzzles"), [PUZZLE]))


@pytest.mark.parametrize("depth", [60, 100_000])
def test_a_line_that_is_nested_without_end_costs_only_itself(depth: int):
    deep = f'{{"puzzle": {"[" * depth}{"]" * depth}}}\n'
    given = list(
        numbered(records_in([f"{SOLVED}\n", deep, f"{SOLVED}\n"], [PUZZLE], name="the text"))
    )
    assert [entry.puzzle for entry in given] == [SOLVED, deep.rstrip(), SOLVED]
    assert json.dumps(given[1].puzzle)


def test_outcomes_leave_in_the_order_of_their_puzzles_and_bad_lines_cost_themselves():
    def backwards(requests: Iterable[RequestOrRefusal]) -> Iterator[tuple[int, Reply]]:
        for position, request in reversed(list(enumerate(requests))):
            is_refused = isinstance(request, ErrorDetail)
            yield position, request if is_refused else answer(request.attempts)

    given = [
        Entry(number=1, fields={"puzzle": "a"}),
        Entry(number=2, fields={"puzzle": "b", "attempts": "many"}),
        Entry(number=3, fields={"puzzle": "c", "attempts": 2}),
    ]
    outcomes = list(solve_in_order(solver_of(backwards), iter(given), options_of({"attempts": 7})))
    assert [entry.number for entry, _ in outcomes] == [1, 2, 3]
    first, refused, last = (reply for _, reply in outcomes)
    assert (first.solution, last.solution) == (7, 2)
    assert refused.field == "attempts"


def write_all(path: Path, puzzles: list[str]) -> Tally:
    tally = Tally(solver_of(lambda _: ()))
    numbered = enumerate(puzzles, 1)
    given = (Entry(number=number, fields={"puzzle": puzzle}) for number, puzzle in numbered)
    with continued(path) as ledger:
        ledger.skip_answered(given, tally)
        for entry in given:
            reply = answer(entry.puzzle)
            ledger.write(entry, reply)
            tally.add(entry, reply)
    return tally


def test_a_file_cut_off_anywhere_is_continued_to_the_same_file(tmp_path: Path):
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
    "text",
    [
        "my diary",
        '{"number": 2, "puzzle": "x", "answer": {}}\n',
        f'{{"number": 1, "puzzle": "{SOLVED}", "answer": {{}}}}\n',
        f'{{"number": 1, "puzzle": "{SOLVED}"}}\n',
        "[1]\n",
    ],
)
def test_somebody_elses_file_is_left_as_it_is(tmp_path: Path, text: str):
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(SolvingError, match="cannot be continued"):
        write_all(path, [SOLVED])
    assert path.read_text() == text


def test_answers_to_other_puzzles_are_not_continued(tmp_path: Path):
    write_all(tmp_path / "out", [SOLVED, SOLVED])
    with pytest.raises(SolvingError, match="its line 2 does not answer the puzzle"):
        write_all(tmp_path / "out", [SOLVED, OPEN, SOLVED])


def test_two_runs_do_not_write_one_file(tmp_path: Path):
    with (
        continued(tmp_path / "out"),
        pytest.raises(SolvingError, match="another run"),
        continued(tmp_path / "out"),
    ):
        pass


class Run:
    """`hrm-solve` over a file of many puzzles and a server."""

    def __init__(self, folder: Path, num_rounds: int) -> None:
        self.questions = list(examples()) * num_rounds
        self.source = folder / "many.txt"
        self.out = folder / "out.ndjson"
        self.out.touch()
        self.source.write_text("\n".join(self.questions))

    def command(self, server: Server, *options: object) -> list[str]:
        return command("solve", self.source, "--url", server.url, "--out", self.out, *options)

    def begin(self, server: Server, *options: object) -> subprocess.Popen[str]:
        """Start it, and return when it has written something."""
        before = self.out.stat().st_size
        line = self.command(server, *options)
        process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: self.out.stat().st_size > before, every_s=0.005)
        return process

    def require_right_answers(self) -> int:
        """Return how many answers the file has; each is that of the question at its place."""
        records = lines_in(self.out.read_text())
        assert [record["number"] for record in records] == list(range(1, len(records) + 1))
        for record in records:
            question = self.questions[record["number"] - 1]
            assert record["answer"]["solution"] == examples()[question]
        return len(records)


@pytest.mark.process
def test_a_run_killed_at_any_moment_is_finished_by_the_same_command(tmp_path: Path):
    run = Run(tmp_path, 15)
    with running() as server:
        for _ in range(2):
            with run.begin(server) as process:
                process.kill()
        torn = run.out.read_bytes()
        assert 0 < torn.count(b"\n") < len(run.questions)
        # as a kill in the middle of a line would leave it
        run.out.write_bytes(torn + b'{"number": ')
        done = ran(*run.command(server, "--json"), timeout=PATIENCE_S)
    assert run.require_right_answers() == 120
    assert run.out.read_bytes().startswith(torn)
    counts = json.loads(done.stdout)
    assert (counts["puzzles"], counts["proven"], counts["refused"]) == (120, 120, {})


@pytest.mark.process
def test_a_dying_server_loses_no_answer(tmp_path: Path):
    run = Run(tmp_path, 40)
    with running(step_s=0.01, slots=2) as server, run.begin(server, "--patience", 0.5) as process:
        os.killpg(server.process.pid, signal.SIGKILL)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "start hrm-serve there" in told
    assert run.require_right_answers() < 320


def test_pauses_grow_are_random_and_never_shorter_than_asked_for():
    drawn = [RetryPolicy(limit_s=1e9, rng=random.Random(seed)) for seed in range(50)]
    longest_s = 0.0
    for _ in range(6):
        pauses_s = [policy.pause_s() for policy in drawn]
        assert len(set(pauses_s)) == 50
        assert max(pauses_s) > longest_s
        longest_s = max(pauses_s)
    for _ in range(3000):  # however long a server stays away
        assert 0 <= drawn[0].pause_s() <= 30.0
    assert drawn[1].pause_s(40.0) >= 40.0
    busy = UnavailableError(503, REFUSAL, retry_after_s=4.0)
    assert not RetryPolicy(limit_s=3.0, rng=random.Random(0)).wait(busy)


def test_a_pause_that_is_longer_than_the_patience_is_not_begun():
    asked = []

    def list_models(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        body("", 429, Retry_After="31")(handler)

    with (
        odd_server(lines(), list_models) as url,
        Client(url, patience_s=30.0) as client,
        pytest.raises(UnavailableError),
    ):
        client.models()
    assert asked == ["/models"]


def test_counts_tell_proven_unfinished_and_refused_by_reason():
    tally = Tally(solver_of(lambda _: ()))
    entry = Entry(number=1, fields={"puzzle": "x"})
    for outcome in (answer("x"), answer("x"), answer("x", is_proven=False), REFUSAL):
        tally.add(entry, outcome)
    assert tally.text() == (
        "4 puzzles: 2 proven, 1 unfinished, 1 refused (1 bad-puzzle); 2.0 segments on average"
    )


def test_what_a_model_halted_on_is_solved_only_by_the_callers_own_label():
    solver = Solver(puzzles={"m": registry.get("arc-7x7")}, solve_all=lambda _: ())
    question = {"task": "t", "input": [[0, 7]]}
    word = {"status": "halted", "attempts": 3, "vote_share": 2 / 3}
    halted = answer([[7, 0]], is_proven=False).model_copy(update=word)
    told = "the model's word, no proof exists, 67 % of the votes"
    tally = Tally(solver)
    labels = [([[7, 0]], True), ([[7, 7]], False), ("no board", False), (None, False)]
    for known, is_right in labels:
        entry = Entry(number=1, fields={"puzzle": question}, known=known)
        label = ", right by its label" if is_right else ""
        assert summary(solver, entry, halted).startswith(f"{told}{label}: 3 attempts")
        tally.add(entry, halted)
    assert tally.text().startswith("4 puzzles: 4 halted, 1 right by their labels; ")


SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
REMARK = "solving here with the shipped models"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """The usual address, at which nothing listens."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(client, "DEFAULT_URL", url)
    return url


def test_a_puzzle_is_solved_here_if_no_server_answers(nobody: str):
    done = succeeded(main, SUDOKU, "--threads=1")
    assert done.stdout.startswith("534678912")
    assert done.stderr == f"no server answers at {nobody}: {REMARK}\n"


@pytest.mark.parametrize("named", ["url", "key"])
def test_a_named_server_is_not_replaced(named: str, nobody: str, tmp_path: Path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    option = f"--url={nobody}" if named == "url" else f"--key-file={key}"
    told = rejected(main, SUDOKU, option, "--threads=1", status=3)
    assert f"no answer from {nobody}" in told
    assert REMARK not in told
