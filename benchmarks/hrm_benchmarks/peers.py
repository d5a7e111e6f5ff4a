"""What people would use instead of hrm-serve: servers in `benchmarks/peers` around the same graph.

Every peer runs in two forms: `fixed` runs 16 segments of every batch, as the published evaluation
does; `until-proven` runs a batch until its slowest puzzle is proven. A peer's batch size is found
by a search on the mixed load; size 1 is one puzzle at a time. hrm-serve answers with its defaults,
which let a Sudoku model try hypotheses, and `plain`, as the peers do. CPU seconds are those of all
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
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np

import hrm_edge_runtime
import hrm_host
import hrm_puzzles
from hrm_benchmarks import client
from hrm_benchmarks.report import RATIO, Row, environment, markdown, tell
from hrm_benchmarks.server import Usage, running, serve_command, usage_of
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_puzzles.data.sources import Questions, questions_made

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "peers"
ROOMS = (hrm_edge_runtime, hrm_host, hrm_puzzles)
OURS = "hrm-serve"
OUR_FORMS = ("default", "plain")
SERVERS = ("litserve", "ray", "bentoml", "fastapi")
WITHOUT_BATCHES = ("fastapi",)
FORMS = ("fixed", "until-proven")
BATCHES = (1, 4, 16)  # tried by the search; on a CPU a batch of one may win
WAIT_MS = 2.0  # wait for a full batch; 16 connections fill one immediately
PUZZLES_OF_SEARCH = 60
WARM_UP = 16  # puzzles
START_S = 300  # a busy machine starts a raylet slowly
LOADS = {
    "easy 9x9": ("sudoku", ("easy",)),
    "mixed 9x9": ("sudoku", ("easy", "medium", "hard", "minimal")),
    "8x8 mazes": ("maze-8x8", ("easy", "medium", "hard")),
}
COLUMNS = {
    "load": "{load}",
    "server": "{server}",
    "form": "{form}",
    "batch": "{batch}",
    "puzzles/s": "{puzzles_per_s:.0f}",
    "p50 ms": "{p50_ms:.0f}",
    "p99 ms": "{p99_ms:.0f}",
    "open p50": "{open_p50_ms:.0f}",
    "open p99": "{open_p99_ms:.0f}",
    "CPU ms": "{cpu_ms_a_proof:.1f}",
    "beside ours": RATIO,
    "proven": "{num_proven}",
    "MB": "{memory_mb:.0f}",
    "lines": "{num_lines}",
}
SEARCHED = "mixed 9x9"  # the load on which the search runs
MEDIANS = (
    "puzzles_per_s",
    "p50_ms",
    "p99_ms",
    "cpu_ms_a_proof",
    "num_proven",
    "memory_mb",
    "ratio",
)
CAPTION = """\
p50, p99: closed loop. open: random arrivals at a fixed rate; latency counts from the due moment
CPU ms: of all processes, per proven answer
default: hypotheses for Sudokus; plain: without them, as the peers
beside ours: CPU time per proof divided by that of hrm-serve's default in the same round;
             median (lowest to highest)
batch: the best of 1, 4 and 16 by CPU time per proof on the mixed load. MB: all processes together
lines: of the server's own file that are not blank"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server and how it is started."""

    server: str
    form: str
    batch: int = 1

    def command(self, python: Path, bundle: Bundle) -> list[str]:
        if self.server == OURS:
            return serve_command(str(bundle.path), "--engine=cpu:fp32", "--threads=1")
        path = os.pathsep.join(str(Path(room.__path__[0]).parent) for room in ROOMS)
        options = [f"--bundle={bundle.path}", f"--form={self.form}"]
        options += [f"--batch={self.batch}", f"--wait-ms={WAIT_MS}"]
        return [
            "env",
            "-C",
            str(FOLDER),
            f"PYTHONPATH={path}",
            f"RAY_raylet_start_wait_time_s={START_S}",
            str(python.absolute()),
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
        question: dict[str, object] = {"puzzle": puzzle}
        if self.server == "bentoml":
            question = {"puzzles": [puzzle]}
        if self.server == OURS and self.form == "plain":
            question["how"] = "plain"
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
    """How the load is sent to the servers."""

    python: Path  # Python of the environment that holds the peers' packages
    rounds: int
    connections: int
    rate: float  # puzzles per second in the open loop
    seed: int


def measure(loads: Sequence[PuzzleLoad], servers: Sequence[str], plan: PeerPlan) -> list[Row]:
    """A row per load and server, with medians over the rounds in which all take turns."""
    peers = [Peer(server=OURS, form=form) for form in OUR_FORMS]
    for server, form in itertools.product(servers, FORMS):
        peers.append(_best(Peer(server=server, form=form), _searched(loads), plan))
    turns: list[list[list[Row]]] = []  # by round, peer and load
    for number in range(plan.rounds):
        turns.append([])
        for peer in peers:
            tell(f"round {number + 1} of {plan.rounds}: {peer.server} {peer.form}")
            turns[-1].append(_turn(peer, loads, plan, number))
    rows: list[Row] = []
    for number, load in enumerate(loads):
        of_load = [[of_peer[number] for of_peer in of_round] for of_round in turns]
        for peer, of_peer in zip(peers, ratios(of_load), strict=True):
            rows.append(_summary(peer, load, of_peer))
    return rows


def _searched(loads: Sequence[PuzzleLoad]) -> PuzzleLoad:
    """The first puzzles of the mixed load, or of the first load if there is no mixed one."""
    named = {load.name: load for load in loads}
    load = named.get(SEARCHED, loads[0])
    return replace(load, texts=load.texts[:PUZZLES_OF_SEARCH])


def _best(peer: Peer, load: PuzzleLoad, plan: PeerPlan) -> Peer:
    """The peer with the batch size that costs least CPU time per proof."""
    if peer.server in WITHOUT_BATCHES:
        return peer
    found: dict[Peer, float] = {}
    for batch in BATCHES:
        tried = replace(peer, batch=batch)
        (row,) = _turn(tried, [load], replace(plan, rate=0.0), 0)
        found[tried] = row["cpu_ms_a_proof"]
        tell(f"search: {peer.server} {peer.form}, batch {batch}: {found[tried]:.1f} ms a proof")
    return min(found, key=found.__getitem__)


def _turn(peer: Peer, loads: Sequence[PuzzleLoad], plan: PeerPlan, number: int) -> list[Row]:
    """A row for each load; loads of one bundle follow each other on one server."""
    rows: list[Row] = []
    for _, of_bundle in itertools.groupby(loads, lambda load: load.bundle.path):
        asked = list(of_bundle)
        command = peer.command(plan.python, asked[0].bundle)
        with running(command, within_s=START_S) as server:
            for load in asked:
                asking = _asked(peer, load, plan, number, url=server.url, pid=server.pid)
                rows.append(asyncio.run(asking))
    return rows


async def _asked(
    peer: Peer, load: PuzzleLoad, plan: PeerPlan, number: int, *, url: str, pid: int
) -> Row:
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
            **_percentiles("", [1e3 * reply.latency_s for reply in replies]),
            "cpu_ms_a_proof": 1e3 * cpu_s / max(1, num_proven),
            "num_proven": num_proven,
            "memory_mb": after["resident_mb"],
        }
        if plan.rate:
            row["open_ms"] = await _open_loop(http, bodies[number :: plan.rounds], plan, number)
    return row


async def _open_loop(
    http: aiohttp.ClientSession, bodies: Sequence[bytes], plan: PeerPlan, number: int
) -> list[float]:
    """Send a round's part of the puzzles at random moments; return the latencies in ms."""
    rng = np.random.default_rng([plan.seed, number])
    gaps_s = rng.exponential(1 / plan.rate, len(bodies))
    exchanges = await client.open_loop(http, bodies, np.cumsum(gaps_s).tolist())
    return [1e3 * one.latency_s for one in exchanges]


@dataclass(frozen=True)
class _Reply:
    latency_s: float
    is_proven: bool


async def _closed_loop(
    http: aiohttp.ClientSession, peer: Peer, bodies: Sequence[bytes], connections: int
) -> list[_Reply]:
    """Each connection sends its next puzzle as soon as its last one is answered."""
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


def _percentiles(prefix: str, latencies_ms: Sequence[float]) -> Row:
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99]).tolist()
    return {f"{prefix}p50_ms": p50_ms, f"{prefix}p99_ms": p99_ms}


def ratios(turns: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows of each peer, with its CPU time per proof over that of the first in its round."""
    of_peers: list[list[Row]] = [[] for _ in turns[0]]
    for rows in turns:
        for of_peer, row in zip(of_peers, rows, strict=True):
            ratio = row["cpu_ms_a_proof"] / rows[0]["cpu_ms_a_proof"]
            of_peer.append({**row, "ratio": ratio})
    return of_peers


def _summary(peer: Peer, load: PuzzleLoad, rows: Sequence[Row]) -> Row:
    """Medians over the rounds, the range of the ratio, and all open latencies together."""
    summary: dict[str, Any] = {"load": load.name, "server": peer.server, "form": peer.form}
    summary["batch"] = None
    if peer.server != OURS:
        summary["batch"] = peer.batch
    for name in MEDIANS:
        summary[name] = float(np.median([row[name] for row in rows]))
    summary["num_proven"] = int(summary["num_proven"])
    ratios = [row["ratio"] for row in rows]
    summary["ratio_low"] = min(ratios)
    summary["ratio_high"] = max(ratios)
    open_ms = itertools.chain.from_iterable(row["open_ms"] for row in rows)
    summary |= _percentiles("open_", list(open_ms))
    summary["num_lines"] = peer.num_lines
    summary["turns"] = list(rows)
    return summary


def save(prefix: Path, title: str, rows: Sequence[Row]) -> None:
    """Write the table to PREFIX.md, all figures to PREFIX.json and the picture to PREFIX.png."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    table = f"{title}\n\n{markdown(COLUMNS, rows)}\n{CAPTION}\n"
    figures = {"title": title, "environment": environment(), "servers": rows}
    prefix.with_suffix(".md").write_text(table, encoding="utf-8")
    prefix.with_suffix(".json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
    _picture(rows).savefig(prefix.with_suffix(".png"), dpi=130)


def _picture(rows: Sequence[Row]) -> Figure:
    """One panel per load, with a bar per server: its CPU time per proof."""
    from matplotlib.figure import Figure  # not in the extras that serving needs

    loads = list(dict.fromkeys(row["load"] for row in rows))
    figure = Figure(figsize=(3.6 * len(loads), 3.6), layout="tight")
    panels = np.atleast_1d(figure.subplots(1, len(loads), sharey=True))
    for axes, load in zip(panels, loads, strict=True):
        of_load = [row for row in rows if row["load"] == load]
        names = [f"{row['server']} {row['form']}" for row in of_load]
        colors = ["C1" if row["server"] == OURS else "C0" for row in of_load]
        bars = axes.barh(names, [row["cpu_ms_a_proof"] for row in of_load], color=colors)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
        axes.margins(x=0.18)
        axes.set(title=load, xlabel="CPU ms per proof")
    panels[0].invert_yaxis()
    return figure


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
    for one in found:  # the loop appends to `found`
        found += children.get(one, [])
    return found
