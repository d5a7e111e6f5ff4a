"""Whatever a server answers, `hrm-solve` shows text that commands no terminal."""

import json
import re
import subprocess

import pytest
from odd_server import MODEL, Reply, body, lines, odd_server, refused, solved
from service_tools import command
from solving_tools import OPEN, SOLVED
from terminal_tools import shown

from hrm_host.text import is_printable

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b\x7f\u202e\u2066\u200f\u2028\r\nowned line"
STYLED = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # what rich itself writes

LINE_END = re.compile("\r?\n")  # of a terminal, and of a pipe

pytestmark = pytest.mark.process


def outputs(url: str, *options: object) -> list[str]:
    """Standard output and error in a pipe, then all of it on a terminal."""
    asked = command("solve", OPEN, "--url", url, "--patience", 0, *options)
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    return [done.stdout, done.stderr, STYLED.sub("", shown(asked))]


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
def test_a_line_of_a_batch_commands_no_terminal(line: dict[str, object], options: list[str]) -> None:
    with odd_server(lines(line)) as url:
        require_harmless(outputs(url, *options))


ERROR = {**refused(1, reason=EVIL, message=EVIL, remedy=EVIL)}
EVIL_MODELS = {
    "refused": body(json.dumps({"error": ERROR["error"]}), 400),
    "busy": body(json.dumps({"error": ERROR["error"]}), 503, Retry_After="0"),
    "kind": body(json.dumps({"models": [{**MODEL, "kind": EVIL}]})),
    "name": body(json.dumps({"models": [{**MODEL, "name": EVIL, "sample": EVIL, "precision": EVIL}]})),
    "header": body("no", 500, X_Evil="\x1b[31m"),
    "type": body(json.dumps({"models": [{**MODEL, "slots": EVIL}]})),
}


@pytest.mark.parametrize("models", EVIL_MODELS.values(), ids=EVIL_MODELS)
def test_the_list_of_models_commands_no_terminal(models: Reply) -> None:
    with odd_server(lines(solved(1, SOLVED)), models) as url:
        require_harmless(outputs(url))


def test_the_reasons_of_many_refusals_are_counted_in_one_line() -> None:
    with odd_server(lines(refused(1, reason=EVIL), solved(2, SOLVED))) as url:
        asked = command("solve", "-", "--url", url, "--patience", 0)
        done = subprocess.run(asked, input=f"{OPEN}\n{OPEN}\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("2 puzzles: 1 proven, 1 refused (1 \\x1b]0;owned")
