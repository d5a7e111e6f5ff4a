"""Whatever a server answers, `hrm-solve` ends in time and memory and commands no terminal."""

import gzip
import json
import re
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler

import pytest
from cli_tools import invoked, rejected
from click.testing import Result
from odd_server import MODEL, OPEN, SOLVED, Reply, body, lines, odd_server, refused, solved

from hrm_edge.cli import main
from hrm_edge.client import Client
from hrm_edge.errors import ServerError
from hrm_host.reading import is_printable

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b\x7f\u202e\u2066\u200f\u2028\r\nowned line"

MOST_BYTES = 256 << 20  # of the client and of the server beside it
LINE_END = re.compile("\r?\n")  # of a terminal, and of a pipe


def solve(url: str, *options: object) -> Result:
    return invoked(main, OPEN, "--url", url, "--patience", 0, *options)


def require_harmless(told: Result) -> None:
    for text in (told.stdout, told.stderr):
        for line in LINE_END.split(text):
            assert is_printable(line), ascii(line)
        assert not re.search("^owned", text, re.MULTILINE)


EVIL_LINES = {
    "solution": solved(1, EVIL.replace("\n", "")),
    "solution as lines": solved(1, [EVIL]),
    "unfinished": solved(1, EVIL, status="unfinished", model=EVIL),
    "halted": solved(1, SOLVED, status="halted", verified=None, model=EVIL),
    "model": solved(1, SOLVED, model=EVIL),
    "status": solved(1, SOLVED, status=EVIL),
    "refusal": refused(1, reason=EVIL, field=EVIL, rule=EVIL, message=EVIL, remedy=EVIL),
    "not now": refused(1, reason="draining", message=EVIL, remedy=EVIL),
}


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
@pytest.mark.parametrize("line", EVIL_LINES.values(), ids=EVIL_LINES)
def test_a_batch_line_commands_no_terminal(line: dict[str, object], options: list[str]):
    with odd_server(lines(line)) as url:
        told = solve(url, *options)
    require_harmless(told)


def listed(**changed: str) -> Reply:
    """A list of one model with these fields."""
    return body(json.dumps({"models": [{**MODEL, **changed}]}))


ERROR = json.dumps({"error": refused(1, reason=EVIL, message=EVIL, remedy=EVIL)["error"]})
EVIL_MODELS = {
    "refused": body(ERROR, 400),
    "busy": body(ERROR, 503, Retry_After="0"),
    "name": listed(name=EVIL, sample=EVIL, precision=EVIL),
    "header": body("no", 500, X_Evil="\x1b[31m"),
    "type": listed(slots=EVIL),
}


@pytest.mark.parametrize("models", EVIL_MODELS.values(), ids=EVIL_MODELS)
def test_the_list_of_models_commands_no_terminal(models: Reply):
    with odd_server(lines(solved(1, SOLVED)), models) as url:
        told = solve(url)
    require_harmless(told)


def refusal(url: str, *options: object) -> str:
    """The one sentence that a run of two puzzles ends with."""
    two = f"{OPEN}\n{SOLVED}\n"
    return rejected(main, "-", "--url", url, "--patience", 0, *options, status=3, given=two)


def chunk(piece: bytes, length: int) -> Reply:
    """An endless answer in chunks, whose first chunk may be shorter than its length says."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s" % (length, piece))

    return reply


def endless(piece: bytes, *, status: int = 200, pause_s: float = 0.0) -> Reply:
    """An answer that never ends; what it may take is bounded by the test's own time."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        while True:
            handler.wfile.write(piece)
            time.sleep(pause_s)

    return reply


def endless_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"x-more: 1\r\n" * 1000)


GOOD = json.dumps(solved(1, SOLVED)).encode() + b"\n"
ZIPPED = gzip.compress(b" " * (64 << 20))
NO_FORM = "as hrm-serve does ("
NO_REASON = "without a reason"
NO_ANSWER = "no answer from http://127.0.0.1:"
NOT_WAITING = "is not waiting for an answer"
NO_SOLUTION = "a wrong answer to its sudoku-4x4 puzzle"
TWO = solved(2, SOLVED)
HUGE = json.dumps(solved(1, SOLVED, segments=7)).replace("7", "7" * 5000)
DEEP = json.dumps(solved(1, 7)).replace("7", "[" * 5000 + "]" * 5000)
LATER = refused(1, reason="draining")
ODD = {
    "a page": (body("<html><body>Sign in</body></html>"), f"{NO_FORM}it is not JSON"),
    "nothing": (body(""), "did not answer line 1"),
    "no field": (lines({}), "(line: it is missing)"),
    "neither": (lines({"line": 1}), "line 1 holds neither an answer nor an error"),
    "wrong types": (
        lines(solved(1, SOLVED, segments=["x"])),
        "answer.segments: it is not a whole number",
    ),
    "a huge number": (body(HUGE), NO_FORM),
    "deep": (body(DEEP), "recursion limit exceeded"),
    "another shape": (lines(solved(1, "1234"), TWO), NO_SOLUTION),
    "an unknown line": (lines(solved(3, SOLVED)), f"line 3 {NOT_WAITING}"),
    "refused for ever": (lines(LATER, LATER), f"line 1 {NOT_WAITING}"),
    "a line too few": (lines(solved(1, SOLVED)), "did not answer line 2"),
    "cut off": (chunk(GOOD[:-30], 10_000), NO_ANSWER),
    "redirect": (body("", 302, Location="https://a.b/c"), "to which it leads (https://a.b/c)"),
    "an error without a reason": (body("teapot", 418), f"answered 418 {NO_REASON}"),
    "an endless error": (endless(b"x" * 65536, status=500), "more than 8388608 bytes"),
    "an endless line": (endless(b"x" * 65536), "the server's answer has more than 1048576 bytes"),
    "zipped": (body(ZIPPED, Content_Encoding="gzip"), f"{NO_FORM}it is not JSON"),
    "not HTTP": (lambda handler: handler.wfile.write(b"\x00\xff" * 999), NO_ANSWER),
    "endless headers": (endless_headers, NO_ANSWER),
    "no end": (chunk(GOOD, len(GOOD)), NO_ANSWER),
}


@pytest.mark.parametrize(("batch", "said"), ODD.values(), ids=ODD)
def test_an_odd_answer_ends_in_one_sentence_and_bounded_memory(batch: Reply, said: str):
    tracemalloc.start()
    try:
        with odd_server(batch) as url:
            assert said in refusal(url)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES  # at its peak
    finally:
        tracemalloc.stop()


UNKNOWN = {"models": [{**MODEL, "kind": "chess"}]}
ODD_MODELS = {
    "a page": (body("<html>"), f"{NO_FORM}it is not JSON"),
    "no models": (body('{"models": []}'), "serves no such model of a puzzle that is installed"),
    "unknown": (body(json.dumps(UNKNOWN)), "serves no such model"),
    "endless": (endless(b" " * 65536), "more than 8388608 bytes"),
}


@pytest.mark.parametrize(("models", "said"), ODD_MODELS.values(), ids=ODD_MODELS)
def test_an_odd_list_of_models_ends_in_one_sentence(models: Reply, said: str):
    with odd_server(lines(), models) as url:
        assert said in refusal(url)


@pytest.mark.parametrize("path", ["/models", "/solve", "/solve/batch"])
def test_an_answer_that_comes_in_drops_ends_in_time(path: str):
    drops = endless(b" ", pause_s=0.02)
    calls = {
        "/models": Client.models,
        "/solve": lambda it: it.solve(SOLVED),
        "/solve/batch": lambda it: it.solve_many([SOLVED]),
    }
    with (
        odd_server(drops, drops) as url,
        Client(url, timeout_s=0.5) as client,
        pytest.raises(ServerError, match=r"did not end within 0.5 s"),
    ):
        calls[path](client)


@pytest.mark.parametrize("url", ["http://a\x1bb", "http://[::1"])
def test_what_is_no_address_is_one_sentence(url: str):
    assert "correct --url" in refusal(url)


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero"])
def test_an_output_file_is_a_plain_file(path: str):
    with odd_server(lines(solved(1, SOLVED), solved(2, SOLVED))) as url:
        assert "name a plain file" in refusal(url, "--out", path)
