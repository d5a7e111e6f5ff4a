"""How much of our own code one warm `POST /solve` crosses: files, functions and calls, in both processes together.

python tools/trace_solve.py --root .
python tools/trace_solve.py --root . --list

A real `hrm-serve` is started with a real engine process, and asked over a real socket for a 6x6 Sudoku of 5 segments.
Both processes find a `sitecustomize` that counts call events while the client says so: from before the request is sent
until the answer is there and the server has noted it. No module of ours is named here, so modules may move freely.

A call is a "call" event of `sys.setprofile` in a package `hrm_*`: a function, method, property, lambda or coroutine
that starts, and also a generator or coroutine that goes on after `yield` or `await`. A comprehension is a function of
its own, as Python 3.10 and 3.11 have it (later ones run most of them in place, so compare figures of one version of
Python only). What dataclasses generate lies in no file of ours. Of several requests the one with the fewest calls is
shown: in the others a timer of the server went off.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

PUZZLE = "...5...6...2.2..3.5...4.2.....3....."
NUM_SEGMENTS = 5
NUM_REQUESTS = 9
AFTER_S = 0.03  # for what the server does once the answer has been sent: metrics and the log line
BETWEEN_S = 0.4  # long enough for the engine to publish its figures and to fall asleep
PATIENCE_S = 60.0

IDLE, DONE = 0, 255  # of the byte that both processes watch; in between stands the number of the request

COUNTING = """
import atexit, json, mmap, os, sys, threading, time
from collections import Counter

def begin(state_path):
    with open(state_path, "r+b") as file:
        state = mmap.mmap(file.fileno(), 1)
    counts = {}

    def note(frame, event, _):
        if event == "call" and 0 < state[0] < 255:
            key = state[0], frame.f_code
            counts[key] = counts.get(key, 0) + 1

    def write_when_done():
        while state[0] != 255:
            time.sleep(0.05)
        names = Counter()
        for (request, code), count in list(counts.items()):
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            names[request, code.co_filename, name] += count
        part = f"{state_path}.{os.getpid()}.part"
        with open(part, "w") as file:
            json.dump([[*key, count] for key, count in names.items()], file)
        os.rename(part, part[: -len(".part")] + ".json")

    threading.Thread(target=write_when_done, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)

if "TRACE_SOLVE_STATE" in os.environ:
    begin(os.environ["TRACE_SOLVE_STATE"])
"""

Calls = Counter[tuple[str, str]]  # by file and function


def calls_of_solve(root: Path) -> Calls:
    """The calls of the quietest of several requests."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "sitecustomize.py").write_text(COUNTING)
        state_path = work / "state"
        state_path.write_bytes(bytes([IDLE]))
        text = (root / "pyproject.toml").read_text(encoding="utf-8")
        rooms = [str(root / room) for room in re.findall(r'^ +"(\w+)/hrm_\w+",$', text, re.M)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([directory, *rooms]),
            "TRACE_SOLVE_STATE": str(state_path),
        }
        found = re.search(r'^hrm-serve = "(.+):(.+)"$', text, re.M)
        assert found, "pyproject.toml has no hrm-serve"
        port = _free_port()
        options = ["sudoku-6x6", "--engine", "cpu:fp32", "--slots", "4", "--threads", "1", "--port", str(port)]
        program = f"import sys; from {found[1]} import {found[2]} as main; sys.argv[0] = 'hrm-serve'; main()"
        with (work / "log").open("w") as log:
            server = subprocess.Popen([sys.executable, "-c", program, *options], cwd=work, env=environment, stderr=log)
        try:
            _wait_until_ready(port, server, work / "log")
            with state_path.open("r+b") as file, mmap.mmap(file.fileno(), 1) as state:
                for request in range(NUM_REQUESTS + 1):
                    _ask(port, state, request)
                state[0] = DONE
            _wait_for_two_reports(work)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE_S)
        return _quietest([json.loads(path.read_text()) for path in work.glob("state.*.json")], root)


def _ask(port: int, state: mmap.mmap, request: int) -> None:
    """Solve the puzzle over a connection of its own; request 0 warms up and is not counted."""
    body = json.dumps({"puzzle": PUZZLE}).encode()
    lines = [
        "POST /solve HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        time.sleep(BETWEEN_S)  # the connection itself is not counted
        state[0] = request
        connection.sendall(head.encode() + body)
        answer = connection.recv(65536)
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        time.sleep(AFTER_S)
        state[0] = IDLE
    segments = json.loads(answer.partition(b"\r\n\r\n")[2])["segments"]
    if segments != NUM_SEGMENTS:
        raise SystemExit(f"the puzzle took {segments} segments where {NUM_SEGMENTS} are due; choose another one here")


def _quietest(reports: list[list[tuple[int, str, str, int]]], root: Path) -> Calls:
    requests: dict[int, Calls] = {}
    for report in reports:
        for request, file, name, count in report:
            path = Path(file)
            if path.is_relative_to(root) and path.relative_to(root).parts[1].startswith("hrm_"):
                relative = str(Path(*path.relative_to(root).parts[1:]))
                requests.setdefault(request, Counter())[relative, name] += count
    return min(requests.values(), key=Counter[tuple[str, str]].total)


def _wait_until_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < give_up_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"hrm-serve does not become ready:\n{log.read_text()[-3000:]}")


def _wait_for_two_reports(work: Path) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while len(list(work.glob("state.*.json"))) < 2:
        if time.monotonic() > give_up_s:
            raise SystemExit("the two processes wrote no counts")
        time.sleep(0.05)
    time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(calls: Calls, *, as_list: bool) -> None:
    files: Counter[str] = Counter()
    for (file, _), count in calls.items():
        files[file] += count
    print(f"{len(files)} files, {len(calls)} functions, {calls.total()} calls")
    if not as_list:
        return
    for file, total in sorted(files.items(), key=lambda item: (-item[1], item[0])):
        functions = sorted((-count, name) for (where, name), count in calls.items() if where == file)
        print(f"\n{total:5} {file} ({len(functions)} functions)")
        for count, name in functions:
            print(f"{-count:10} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(), help="checkout to look at")
    parser.add_argument("--list", action="store_true", help="each file with its functions and their calls")
    given = parser.parse_args()
    show(calls_of_solve(given.root.resolve()), as_list=given.list)


if __name__ == "__main__":
    main()
