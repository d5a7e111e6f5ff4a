"""Count the files, functions and calls of our own code that one warm `POST /solve` crosses.

python tools/trace_solve.py --root .
python tools/trace_solve.py --root . --list

The script starts a real `hrm-serve` with a real engine process and asks it over a real socket for
a 6x6 Sudoku of 5 segments. Both processes load a `sitecustomize` that counts call events while
the client asks it to: from before the request is sent until the answer has arrived and the server
has recorded it. No module of the checkout is imported here, so modules may move freely.

A call is a "call" event of `sys.setprofile` in a package `hrm_*`: a function, method, property,
lambda or coroutine starts, or a generator or coroutine goes on after `yield` or `await`. Python
3.10 and 3.11 count a comprehension as a function, later versions do not, so compare figures of
one version only. Code that dataclasses generate is in no file and does not count. The result is
the request with the fewest calls: during the others a timer of the server ran.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path

from checkout import Checkout

PUZZLE = "...5...6...2.2..3.5...4.2.....3....."
NUM_SEGMENTS = 5
NUM_REQUESTS = 9
AFTER_S = 0.03  # for the work after the answer: metrics and the log line
BETWEEN_S = 0.4  # long enough for the engine to publish its figures and to fall asleep
PATIENCE_S = 60.0

# Both processes watch one byte. It is IDLE, DONE or the number of the request.
IDLE = 0
DONE = 255

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
Report = list[tuple[int, str, str, int]]  # request, file, function, number of calls


def calls_of_solve(root: Path) -> Calls:
    """The calls of the request with the fewest calls."""
    with tempfile.TemporaryDirectory() as directory:
        checkout = Checkout(root, Path(directory))
        reports = _reports(checkout)
        return _quietest(reports, checkout.root)


def _reports(checkout: Checkout) -> list[Report]:
    """What the two processes of the server counted."""
    work = checkout.work
    (work / "sitecustomize.py").write_text(COUNTING)
    state_path = work / "state"
    state_path.write_bytes(bytes([IDLE]))
    rooms = checkout.environment["PYTHONPATH"]
    variables = {
        "PYTHONPATH": f"{work}{os.pathsep}{rooms}",
        "TRACE_SOLVE_STATE": str(state_path),
    }
    with checkout.served(["sudoku-6x6"], **variables) as http:
        port = http.base_url.port
        assert port
        with state_path.open("r+b") as file, mmap.mmap(file.fileno(), 1) as state:
            for request in range(NUM_REQUESTS + 1):
                _ask(port, state, request)
            state[0] = DONE
        _wait_for_two_reports(work)
    return [json.loads(path.read_text()) for path in work.glob("state.*.json")]


def _ask(port: int, state: mmap.mmap, request: int) -> None:
    """Solve the puzzle over a connection of its own; request 0 warms up and is not counted."""
    question = json.dumps({"puzzle": PUZZLE}).encode()
    lines = [
        "POST /solve HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(question)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        time.sleep(BETWEEN_S)  # the connection itself is not counted
        state[0] = request
        connection.sendall(head.encode() + question)
        answer = b""
        while not answer.endswith(b"}\n"):
            part = connection.recv(65536)
            if not part:
                raise SystemExit(f"the server closed the connection after {answer!r}")
            answer += part
        time.sleep(AFTER_S)
        state[0] = IDLE
    _, _, body = answer.partition(b"\r\n\r\n")
    segments = json.loads(body)["segments"]
    if segments != NUM_SEGMENTS:
        raise SystemExit(f"the puzzle took {segments} segments, not {NUM_SEGMENTS}; choose another")


def _quietest(reports: list[Report], root: Path) -> Calls:
    requests: dict[int, Calls] = {}
    for report in reports:
        for request, file, name, count in report:
            path = _path_in_rooms(Path(file), root)
            if path is not None:
                calls = requests.setdefault(request, Counter())
                calls[str(path), name] += count
    return min(requests.values(), key=Counter[tuple[str, str]].total)


def _path_in_rooms(file: Path, root: Path) -> Path | None:
    """`hrm_package/module.py` for a file of ours."""
    if not file.is_relative_to(root):
        return None
    _, *parts = file.relative_to(root).parts
    if not parts or not parts[0].startswith("hrm_"):
        return None
    return Path(*parts)


def _wait_for_two_reports(work: Path) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while len(list(work.glob("state.*.json"))) < 2:
        if time.monotonic() > give_up_s:
            raise SystemExit("the two processes wrote no counts")
        time.sleep(0.05)
    time.sleep(0.2)


def show(calls: Calls) -> None:
    num_files = len({file for file, _ in calls})
    print(f"{num_files} files, {len(calls)} functions, {calls.total()} calls")


def show_list(calls: Calls) -> None:
    """Files and their functions, those with the most calls first."""
    files: Counter[str] = Counter()
    for (file, _), count in calls.items():
        files[file] += count
    for file, total in by_count(files):
        functions: Counter[str] = Counter()
        for (place, name), count in calls.items():
            if place == file:
                functions[name] = count
        print(f"\n{total:5} {file} ({len(functions)} functions)")
        for name, count in by_count(functions):
            print(f"{count:10} {name}")


def by_count(counts: Counter[str]) -> list[tuple[str, int]]:
    """The largest count first; equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--root", type=Path, default=Path(), help="Checkout to trace.")
    parser.add_argument("--list", action="store_true", help="List the functions of each file.")
    given = parser.parse_args()
    calls = calls_of_solve(given.root)
    show(calls)
    if given.list:
        show_list(calls)


if __name__ == "__main__":
    main()
