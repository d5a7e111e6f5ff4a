"""Whatever a server answers, `hrm-solve` ends with text that commands no terminal, and in bounded memory and time."""

import gzip
import json
import re
import subprocess
import time
from http.server import BaseHTTPRequestHandler

import pytest
from odd_server import MODEL, Reply, body, lines, odd_server, refused, solved
from service_tools import command
from solving_tools import OPEN, SOLVED
from terminal_tools import shown
from typer.testing import CliRunner, Result

from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.solve.cli import main
from hrm_edge_runtime.solve.client import Client, ServerError
from hrm_host.text import is_printable

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b\x7f\u202e\u2066\u200f\u2028\r\nowned line"
STYLED = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # what rich itself writes

MOST_BYTES = 512 << 20  # of the client with all that it imports
LINE_END = re.compile("\r?\n")  # of a terminal, and of a pipe


def solve(url: str, *options: object, puzzle: str = OPEN, given: str = "") -> Result:
    asked = [puzzle, "--url", url, "--patience", 0, *options]
    return CliRunner().invoke(main, [str(one) for one in asked], input=given)


def require_harmless(texts: list[str]) -> None:
    for text in texts:
        assert all(map(is_printable, LINE_END.split(text))), ascii(text)
        assert not re.search("^owned", text, re.MULTILINE)


EVIL_LINES = {
    "solution": solved(1, EVIL.replace("\n", "")),
    "solution as lines": solved(1, [EVIL]),
    "unfinished": solved(1, EVIL, status="unfinished", solved=False, model=EVIL),
    "halted": solved(1, SOLVED, status="halted", solved=False, verified=None, model=EVIL),
    "model": solved(1, SOLVED, model=EVIL),
    "known model": solved(1, SOLVED, route=None),
    "status": solved(1, SOLVED, status=EVIL),
    "refusal": refused(1, reason=EVIL, field=EVIL, rule=EVIL, message=EVIL, remedy=EVIL),
    "not now": refused(1, reason="draining", message=EVIL, remedy=EVIL),
}


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
@pytest.mark.parametrize("line", EVIL_LINES.values(), ids=EVIL_LINES)
def test_a_line_of_a_batch_commands_no_terminal(
    line: dict[str, object], options: list[str]
) -> None:
    with odd_server(lines(line)) as url:
        told = solve(url, *options)
    require_harmless([told.stdout, told.stderr])


ERROR = {**refused(1, reason=EVIL, message=EVIL, remedy=EVIL)}
EVIL_MODELS = {
    "refused": body(json.dumps({"error": ERROR["error"]}), 400),
    "busy": body(json.dumps({"error": ERROR["error"]}), 503, Retry_After="0"),
    "kind": body(json.dumps({"models": [{**MODEL, "kind": EVIL}]})),
    "name": body(
        json.dumps({"models": [{**MODEL, "name": EVIL, "sample": EVIL, "precision": EVIL}]})
    ),
    "header": body("no", 500, X_Evil="\x1b[31m"),
    "type": body(json.dumps({"models": [{**MODEL, "slots": EVIL}]})),
}


@pytest.mark.parametrize("models", EVIL_MODELS.values(), ids=EVIL_MODELS)
def test_the_list_of_models_commands_no_terminal(models: Reply) -> None:
    with odd_server(lines(solved(1, SOLVED)), models) as url:
        told = solve(url)
    require_harmless([told.stdout, told.stderr])


@pytest.mark.process
@pytest.mark.parametrize(
    "line", ["solution", "solution as lines", "unfinished", "halted", "model", "refusal", "not now"]
)
def test_on_a_terminal_a_line_commands_nothing_either(line: str) -> None:
    with odd_server(lines(EVIL_LINES[line])) as url:
        seen = shown(command("solve", OPEN, "--url", url, "--patience", 0))
    require_harmless([STYLED.sub("", seen)])


def test_the_reasons_of_many_refusals_are_counted_in_one_line() -> None:
    with odd_server(lines(refused(1, reason=EVIL), solved(2, SOLVED))) as url:
        told = solve(url, puzzle="-", given=f"{OPEN}\n{OPEN}\n")
    assert (told.exit_code, told.stderr.count("\n")) == (1, 1), told.stderr
    assert told.stderr.startswith("2 puzzles: 1 proven, 1 refused (1 \\x1b]0;owned")


def refusal(url: str, *options: object) -> str:
    """The one sentence that a run of two puzzles ends with."""
    told = solve(url, *options, puzzle="-", given=f"{OPEN}\n{SOLVED}\n")
    assert (told.exit_code, told.stderr.count("\n")) == (3, 1), told.stderr
    return told.stderr


def chunk(piece: bytes, length: int) -> Reply:
    """An answer in chunks that never ends, and whose first chunk may say that it is longer than it is."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s" % (length, piece))

    return reply


def endless(piece: bytes, pause_s: float = 0.0) -> Reply:
    """An answer that never ends; what it may take is bounded by the test's own time."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(piece)
            time.sleep(pause_s)

    return reply


GOOD = json.dumps(solved(1, SOLVED)).encode() + b"\n"
ZIPPED = gzip.compress(b" " * (64 << 20))
ODD = {
    "a page": (body("<html><body>Sign in</body></html>"), "as hrm-serve does (Invalid JSON"),
    "nothing": (body(""), "did not answer line 1"),
    "a list": (body("[]\n"), "as hrm-serve does (Input should be an object"),
    "a number": (body("5\n"), "as hrm-serve does (Input should be an object"),
    "blank lines": (body("\n\n"), "as hrm-serve does (Invalid JSON"),
    "no field": (lines({}), "(line: Field required)"),
    "neither": (lines({"line": 1}), "line 1 holds neither an answer nor an error"),
    "half an answer": (lines({"line": 1, "answer": {"solution": SOLVED}}), "answer.status: Field required"),
    "wrong types": (lines(solved(1, SOLVED, segments=["x"])), "answer.segments: Input should be a valid integer"),
    "a huge number": (body(json.dumps(solved(1, SOLVED, segments=7)).replace("7", "7" * 5000)), "as hrm-serve does"),
    "deep": (body(json.dumps(solved(1, 7)).replace("7", "[" * 5000 + "]" * 5000)), "recursion limit exceeded"),
    "another shape": (lines(solved(1, "1234"), solved(2, SOLVED)), "a wrong answer to its sudoku-4x4 puzzle"),
    "another puzzle's": (
        lines(solved(1, "4321341221431234"), solved(2, SOLVED)),
        "a wrong answer to its sudoku-4x4 puzzle",
    ),
    "no board": (lines(solved(1, {"a": [None]}), solved(2, SOLVED)), "a wrong answer to its sudoku-4x4 puzzle"),
    "an unknown line": (lines(solved(3, SOLVED)), "line 3 is not waiting for an answer"),
    "line 0": (lines(solved(0, SOLVED)), "line 0 is not waiting for an answer"),
    "no line": (lines(solved("x", SOLVED)), "line: Input should be a valid integer"),
    "the same line again": (lines(solved(1, SOLVED), solved(1, SOLVED)), "line 1 is not waiting for an answer"),
    "refused for ever": (lines(refused(1, reason="draining"), refused(1, reason="draining")), "line 1 is not waiting"),
    "a line too few": (lines(solved(1, SOLVED)), "did not answer line 2"),
    "cut off": (chunk(GOOD[:-30], 10_000), "no answer from http://127.0.0.1:"),
    "not as long as it says": (body(GOOD, Content_Length="10000"), "no answer from http://127.0.0.1:"),
    "redirect": (body("", 302, Location="/solve/batch"), "the server answered 302 without a reason"),
    "redirect elsewhere": (body("", 307, Location="http://example.invalid/"), "answered 307 without a reason"),
    "redirect to nothing": (body("", 308), "answered 308 without a reason"),
    "an error without a reason": (body("teapot", 418), "the server answered 418 without a reason"),
    "an error of another form": (body('{"error": {"message": 5}}', 500), "the server answered 500 without a reason"),
    "an endless error": (lambda handler: endless_error(handler), "more than 8388608 bytes"),
    "bytes": (body(bytes(range(256)) * 8), "as hrm-serve does (Invalid JSON"),
    "an endless line": (endless(b"x" * 65536), "the server's answer has more than 1048576 bytes"),
    "endless lines": (endless(GOOD), "line 1 is not waiting for an answer"),
    "endless blank lines": (endless(b"\n" * 65536), "as hrm-serve does"),
    "zipped": (body(ZIPPED, Content_Encoding="gzip"), "as hrm-serve does (Invalid JSON"),
    "not HTTP": (lambda handler: handler.wfile.write(b"\x00\xff" * 999), "no answer from http://127.0.0.1:"),
    "endless headers": (lambda handler: endless_headers(handler), "no answer from http://127.0.0.1:"),
    "no end": (chunk(GOOD, len(GOOD)), "no answer from http://127.0.0.1:"),
}  # fmt: skip


def endless_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"x-more: 1\r\n" * 1000)


def endless_error(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize(("batch", "said"), ODD.values(), ids=ODD)
def test_an_odd_answer_ends_in_one_sentence(batch: Reply, said: str) -> None:
    with odd_server(batch) as url:
        assert said in refusal(url)


@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in ODD if "endless" in name or name == "zipped"])
def test_an_endless_answer_takes_no_memory_without_end(name: str) -> None:
    bounded = (
        f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({MOST_BYTES}, {MOST_BYTES}))"
    )
    with odd_server(ODD[name][0]) as url:
        python, flag, program, *arguments = command("solve", OPEN, "--url", url, "--patience", 0)
        asked = [python, flag, f"{bounded}; {program}", *arguments]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr


ODD_MODELS = {
    "a page": (body("<html>"), "as hrm-serve does (Invalid JSON"),
    "nothing": (body(""), "as hrm-serve does (Invalid JSON"),
    "a list": (body("[]"), "as hrm-serve does (Input should be an object)"),
    "no models": (
        body('{"models": []}'),
        "serves no such model of a puzzle that is installed here",
    ),
    "half a model": (body('{"models": [{"name": "m"}]}'), "models.0.kind: Field required"),
    "unknown": (body(json.dumps({"models": [{**MODEL, "kind": "chess"}]})), "serves no such model"),
    "endless": (endless(b" " * 65536), "more than 8388608 bytes"),
    "redirect": (body("", 301, Location="/models"), "answered 301 without a reason"),
    "zipped": (body(ZIPPED, Content_Encoding="gzip"), "as hrm-serve does (Invalid JSON"),
}


@pytest.mark.parametrize(("models", "said"), ODD_MODELS.values(), ids=ODD_MODELS)
def test_an_odd_list_of_models_ends_in_one_sentence(models: Reply, said: str) -> None:
    with odd_server(lines(), models) as url:
        assert said in refusal(url)


@pytest.mark.parametrize("path", ["/models", "/solve", "/solve/batch"])
def test_an_answer_that_comes_in_drops_ends_in_time(path: str) -> None:
    drops = endless(b" ", pause_s=0.02)
    request = SolveRequest(puzzle=SOLVED)
    calls = {
        "/models": Client.models,
        "/solve": lambda it: it.solve(SOLVED),
        "/solve/batch": lambda it: list(it.solve_many([request])),
    }
    with (
        odd_server(drops, drops) as url,
        Client(url, timeout_s=0.5) as client,
        pytest.raises(ServerError, match=r"did not end within 0.5 s"),
    ):
        calls[path](client)


@pytest.mark.parametrize("url", ["http://a\x1bb", "http://[::1"])
def test_what_is_no_address_is_one_sentence(url: str) -> None:
    assert "correct --url" in refusal(url)


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero"])
def test_an_output_file_is_a_plain_file(path: str) -> None:
    with odd_server(lines(solved(1, SOLVED), solved(2, SOLVED))) as url:
        assert "name a plain file" in refusal(url, "--out", path)
