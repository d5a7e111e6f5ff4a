"""Time until `hrm-serve` is ready, and the memory of its two processes after some puzzles."""

import statistics
from collections.abc import Sequence

import httpx

from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import RunningServer

NUM_PUZZLES = 5  # puzzles per model, so that the memory is that of a server in use
SOLVE_TIMEOUT_S = 60.0
COLUMNS = {
    "hrm-serve": "{server}",
    "ready s, median": "{median_s:.2f}",
    "best": "{best_s:.2f}",
    "CPU s": "{cpu_s:.2f}",
    "HTTP MB": "{http_mb:.0f}",
    "engine MB": "{engine_mb:.0f}",
    "both MB": "{both_mb:.0f}",
}


def measure(arguments: Sequence[str], *, rounds: int) -> Row:
    """Start `hrm-serve` with these arguments `rounds` times, after one start that warms the disk.

    Memory is resident MB. `cpu_s` is what both processes used until they were ready. Memory and CPU
    time are those of the last start.
    """
    name = " ".join(arguments)
    _started(name, arguments)
    row: Row = {}
    ready_s: list[float] = []
    for _ in range(rounds):
        row = _started(name, arguments)
        ready_s.append(row["ready_s"])
    median_s = statistics.median(ready_s)
    times = {"ready_s": ready_s, "median_s": median_s, "best_s": min(ready_s)}
    return {"server": name, **row, **times}


def _started(name: str, arguments: Sequence[str]) -> Row:
    with serving.running(serving.serve_command(*arguments)) as server:
        cpu_s = sum(process["cpu_s"] for process in server.usage().values())
        _solve_some(server)
        usage = server.usage()
    tell(f"{name}: ready after {server.ready_s:.2f} s")
    http_mb = usage["http"]["resident_mb"]
    engine_mb = usage["engine"]["resident_mb"]
    return {
        "ready_s": server.ready_s,
        "cpu_s": cpu_s,
        "http_mb": http_mb,
        "engine_mb": engine_mb,
        "both_mb": http_mb + engine_mb,
    }


def _solve_some(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, timeout=SOLVE_TIMEOUT_S) as http:
        models = http.get("/models").json()["models"]
        for model in NUM_PUZZLES * models:
            question = {"puzzle": model["sample"], "model": model["name"]}
            http.post("/solve", json=question).raise_for_status()
