"""From the command to the first 200 of /readyz, and what both processes then hold; the first start warms the disk."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import httpx
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.report import environment
from hrm_benchmarks.serving.running import running, serve_command

SOLVED_FIRST = 5  # so that memory is that of a server that has worked


@dataclass(frozen=True, kw_only=True)
class Start:
    """One server; memory is resident MB after some puzzles, `cpu_s` what its two processes used until ready."""

    server: str
    ready_s: list[float]
    cpu_s: float
    http_mb: float
    engine_mb: float

    @property
    def both_mb(self) -> float:
        return self.http_mb + self.engine_mb


def measure(arguments: Sequence[str], *, rounds: int, tell: Callable[[str], object]) -> Start:
    """Start `hrm-serve` with these arguments `rounds` times after a first one that does not count."""
    ready_s: list[float] = []
    cpu_s = http_mb = engine_mb = 0.0
    for number in range(rounds + 1):
        with running(serve_command(*arguments)) as server:
            cpu_s = sum(one.cpu_s for one in server.usage().values())
            _solve_samples(server.url)
            usage = server.usage()
            http_mb, engine_mb = usage["http"].resident_mb, usage["engine"].resident_mb
            server.stop()
        tell(f"{' '.join(arguments)}: ready after {server.ready_s:.2f} s")
        ready_s += [server.ready_s] if number else []
    return Start(server=" ".join(arguments), ready_s=ready_s, cpu_s=cpu_s, http_mb=http_mb, engine_mb=engine_mb)


def _solve_samples(url: str) -> None:
    """Each model's own sample question, a few times."""
    with httpx.Client(base_url=url, timeout=60.0) as http:
        for model in http.get("/models").json()["models"]:
            for _ in range(SOLVED_FIRST):
                http.post("/solve", json={"puzzle": model["sample"], "model": model["name"]}).raise_for_status()


def as_json(starts: Sequence[Start]) -> str:
    return json.dumps({"environment": environment(), "starts": [asdict(one) for one in starts]}, indent=2, default=str)


def print_starts(starts: Sequence[Start], console: Console) -> None:
    table = Table()
    for column in ("hrm-serve", "ready s, median", "best", "CPU s", "HTTP MB", "engine MB", "both MB"):
        table.add_column(column, justify="left" if column == "hrm-serve" else "right")
    for one in starts:
        table.add_row(
            one.server,
            f"{statistics.median(one.ready_s):.2f}",
            f"{min(one.ready_s):.2f}",
            f"{one.cpu_s:.2f}",
            f"{one.http_mb:.0f}",
            f"{one.engine_mb:.0f}",
            f"{one.both_mb:.0f}",
        )
    console.print(table)
