"""What people would use instead of hrm-serve: servers in `benchmarks/peers` around the same graph.

Every peer runs in two forms: `fixed` runs 16 segments of every batch, as the published evaluation
does; `until-proven` runs a batch until its slowest puzzle is proven. CPU seconds are those of all
processes of a server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

import hrm_edge_runtime
import hrm_host
import hrm_puzzles
from hrm_benchmarks import client
from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import Usage, running, serve_command, usage_of
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_puzzles.data.sources import Questions, questions_made

FOLDER = Path(__file__).parents[1] / "peers"
ROOMS = (hrm_edge_runtime, hrm_host, hrm_puzzles)
OURS = "hrm-serve"
SERVERS = ("litserve", "ray", "bentoml", "fastapi")
WITHOUT_BATCHES = ("fastapi",)
FORMS = ("fixed", "until-proven")
BATCHES = (4, 16)  # tried by the search, with each of these waits
WAITS_MS = (1.0, 5.0)
PUZZLES_OF_SEARCH = 100
WARM_UP = 16  # puzzles
LOADS = {
    "easy 9x9": ("sudoku", ("easy",)),
    "mixed 9x9": ("sudoku", ("easy", "medium", "hard", "minimal")),
    "8x8 mazes": ("maze-8x8", ("easy", "medium", "hard")),
}
COLUMNS = {
    "load": "{load}",
    "server": "{server}",
    "form": "{form}",
    "puzzles/s": "{puzzles_per_s:.0f}",
    "p50 ms": "{p50_ms:.0f}",
    "p99 ms": "{p99_ms:.0f}",
    "open p50": "{open_p50_ms:.0f}",
    "open p99": "{open_p99_ms:.0f}",
    "CPU ms a proof": "{cpu_ms_a_proof:.1f}",
    "beside ours": "{cpu_ratio:.2f}",
    "proven": "{num_proven}",
    "MB": "{memory_mb:.0f}",
    "lines": "{num_lines}",
}
CAPTION = """\
p50, p99: closed loop. open: random arrivals at a fixed rate; latency counts from the due moment
beside ours: CPU time per proof over that of hrm-serve in the same round; medians of the rounds"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server and how it is started."""

    server: str
    form: str
    batch: int = 16
    wait_ms: float = 2.0

    def command(self, python: Path, bundle: Bundle) -> list[str]:
        if self.server == OURS:
            return serve_command(str(bundle.path), "--engine=cpu:fp32", "--threads=1")
        path = os.pathsep.join(str(Path(room.__path__[0]).parent) for room in ROOMS)
        options = [f"--bundle={bundle.path}", f"--form={self.form}"]
        options += [f"--batch={self.batch}", f"--wait-ms={self.wait_ms}"]
        return [
            "env",
            "-C",
            str(FOLDER),
            f"PYTHONPATH={path}",
            str(python),
            self.file.name,
            *options,
        ]

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.server}_server.py"

    @property
    def num_lines(self) -> int | None:
        """Lines of the server's file that are not blank; None for ours, which is a command."""
        if self.server == OURS:
            return None
        return sum(bool(line.strip()) for line in self.file.read_text().splitlines())

    def body(self, puzzle: object) -> bytes:
        question = {"puzzles": [puzzle]} if self.server == "bentoml" else {"puzzle": puzzle}
        return json.dumps(question).encode()

    def is_proven(self, reply: Any) -> bool:
        answer = reply[0] if self.server == "bentoml" else reply
        return bool(answer["verified"])


@dataclass(frozen=True, kw_only=True)
class PuzzleLoad:
    """Puzzles of one kind, as text, for one bundle."""

    name: str
    bundle: Bundle
    texts: Sequence[object]

    @classmethod
    def named(cls, name: str, bundle: Bundle, num_puzzles: int, seed: int) -> PuzzleLoad:
        _, difficulties = LOADS[name]
        texts: list[object] = []
        share = -(-num_puzzles // len(difficulties))  # rounded up
        for difficulty in difficulties:
            questions = questions_made(bundle.puzzle, share, difficulty=difficulty, seed=seed)
            texts += _texts(bundle, questions)
        np.random.default_rng(seed).shuffle(texts)
        return cls(name=name, bundle=bundle, texts=texts[:num_puzzles])


def _texts(bundle: Bundle, questions: Questions) -> Iterator[object]:
    for tokens_T in questions.tokens_NT:
        yield bundle.puzzle.asked(bundle.puzzle.decode(tokens_T), "")


@dataclass(frozen=True, kw_only=True)
class PeerPlan:
    """How the servers are asked."""

    python: Path  # of the environment that holds the peers' packages
    rounds: int
    connections: int
    rate: float  # puzzles a second of the open loop
    seed: int


def measure(loads: Sequence[PuzzleLoad], servers: Sequence[str], plan: PeerPlan) -> list[Row]:
    """A row per load and server, with medians over the rounds in which all take turns."""
    rows: list[Row] = []
    for load in loads:
        peers = [Peer(server=OURS, form="halting-aware")]
        for server, form in itertools.product(servers, FORMS):
            peers.append(_best(Peer(server=server, form=form), load, plan))
        turns: list[list[Row]] = []
        for number in range(1, plan.rounds + 1):
            turns.append([])
            for peer in peers:
                tell(f"{load.name}, round {number} of {plan.rounds}: {peer.server} {peer.form}")
                turns[-1].append(_turn(peer, load, plan))
        for peer, of_peer in zip(peers, _ratios(turns), strict=True):
            rows.append(_summary(peer, load, of_peer))
    return rows


def _best(peer: Peer, load: PuzzleLoad, plan: PeerPlan) -> Peer:
    """The peer with the batch size and wait that answer most puzzles a second."""
    if peer.server in WITHOUT_BATCHES:
        return peer
    few = replace(load, texts=load.texts[:PUZZLES_OF_SEARCH])
    found: dict[Peer, float] = {}
    for batch, wait_ms in itertools.product(BATCHES, WAITS_MS):
        tried = replace(peer, batch=batch, wait_ms=wait_ms)
        tell(f"{load.name}, search: {tried}")
        found[tried] = _turn(tried, few, replace(plan, rate=0.0))["puzzles_per_s"]
    return max(found, key=found.__getitem__)


def _turn(peer: Peer, load: PuzzleLoad, plan: PeerPlan) -> Row:
    with running(peer.command(plan.python, load.bundle)) as server:
        return asyncio.run(_asked(peer, load, plan, server.url, server.pid))


async def _asked(peer: Peer, load: PuzzleLoad, plan: PeerPlan, url: str, pid: int) -> Row:
    bodies = [peer.body(text) for text in load.texts]
    async with client.session(url) as http:
        await _closed_loop(http, peer, bodies[:WARM_UP], plan.connections)
        before = tree_usage(pid)
        began_s = time.monotonic()
        replies = await _closed_loop(http, peer, bodies, plan.connections)
        spent_s = time.monotonic() - began_s
        after = tree_usage(pid)
        num_proven = sum(reply.is_proven for reply in replies)
        cpu_s = after["cpu_s"] - before["cpu_s"]
        row: Row = {
            "puzzles_per_s": len(bodies) / spent_s,
            **_percentiles("", [reply.latency_s for reply in replies]),
            "cpu_ms_a_proof": 1e3 * cpu_s / max(1, num_proven),
            "num_proven": num_proven,
            "memory_mb": after["resident_mb"],
        }
        if plan.rate:
            gaps_s = np.random.default_rng(plan.seed).exponential(1 / plan.rate, len(bodies))
            exchanges = await client.open_loop(http, bodies, np.cumsum(gaps_s).tolist())
            row |= _percentiles("open_", [one.latency_s for one in exchanges])
    return row


@dataclass(frozen=True)
class _Reply:
    latency_s: float
    is_proven: bool


async def _closed_loop(
    http: aiohttp.ClientSession, peer: Peer, bodies: Sequence[bytes], connections: int
) -> list[_Reply]:
    """Each connection sends its next puzzle when it has the last answer."""
    waiting = iter(bodies)
    replies: list[_Reply] = []

    async def connection() -> None:
        for body in waiting:
            began_s = time.monotonic()
            reply, status = await client.post(http, body)
            if status != 200:
                raise ValueError(f"{peer.server} answered {status}: {reply}")
            replies.append(_Reply(time.monotonic() - began_s, peer.is_proven(reply)))

    await asyncio.gather(*[connection() for _ in range(connections)])
    return replies


def _percentiles(prefix: str, latencies_s: Sequence[float]) -> Row:
    p50_ms, p99_ms = np.percentile(1e3 * np.array(latencies_s), [50, 99]).tolist()
    return {f"{prefix}p50_ms": p50_ms, f"{prefix}p99_ms": p99_ms}


def _ratios(turns: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows of each peer, with its CPU time per proof over that of the first in its round."""
    of_peers: list[list[Row]] = [[] for _ in turns[0]]
    for rows in turns:
        for of_peer, row in zip(of_peers, rows, strict=True):
            ratio = row["cpu_ms_a_proof"] / rows[0]["cpu_ms_a_proof"]
            of_peer.append({**row, "cpu_ratio": ratio})
    return of_peers


def _summary(peer: Peer, load: PuzzleLoad, rows: Sequence[Row]) -> Row:
    medians = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    medians["num_proven"] = int(medians["num_proven"])
    settings = {"batch": peer.batch, "wait_ms": peer.wait_ms}
    return {
        "load": load.name,
        "server": peer.server,
        "form": peer.form,
        **medians,
        "num_lines": peer.num_lines,
        "settings": settings,
        "turns": list(rows),
    }


def tree_usage(pid: int) -> Usage:
    """CPU seconds and memory of a process and all its descendants."""
    usage: Usage = {"cpu_s": 0.0, "resident_mb": 0.0}
    for one in _tree(pid):
        try:
            of_one = usage_of(one)
        except (OSError, KeyError):  # it has ended meanwhile, or is a thread of the kernel
            continue
        for name in usage:
            usage[name] += of_one[name]
    return usage


def _tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parent = int(fields[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:  # grows while it is walked
        found += children.get(one, [])
    return found
