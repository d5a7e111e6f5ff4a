"""What people would use instead of hrm-serve: servers in `benchmarks/peers` around the same graph.

Every peer runs in two forms: `fixed` runs 16 segments of every batch, as the published evaluation
does; `until-proven` runs a batch until its slowest puzzle is proven. hrm-serve answers with its
defaults, which let a Sudoku model try hypotheses, and `plain`, as the peers do. CPU seconds are
those of all processes of a server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import hrm_edge_runtime
import hrm_host
import hrm_puzzles
from hrm_benchmarks import load as loading
from hrm_benchmarks.command import PeerOptions, texts_of
from hrm_benchmarks.report import RATIO, Row, medians_of, tell
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_puzzles.data.sources import questions_made

SERVERS = ("litserve", "fastapi")
FOLDER = Path(__file__).parents[1] / "peers"
ROOMS = (hrm_edge_runtime, hrm_host, hrm_puzzles)
OURS = "hrm-serve"
OUR_FORMS = ("default", "plain")
# The batch of each form that costs every peer least, of 1, 4 and 16: results/2026-11-24-peers.md.
BATCH_OF = {"fixed": 16, "until-proven": 1}
WARM_UP = 16  # puzzles
LOADS = {
    "mixed 9x9": ("sudoku", "easy,medium,hard,minimal"),
    "easy 9x9": ("sudoku", "easy"),
    "8x8 mazes": ("maze-8x8", "easy,medium,hard"),
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
    "CPU ms": "{cpu_ms_a_proof:.1f}",
    "beside ours": RATIO,
    "proven": "{num_proven:.0f}",
    "ready s": "{ready_s:.1f}",
    "MB": "{memory_mb:.0f}",
}
LEGEND = """\
p50, p99: closed loop. open: random arrivals at a fixed rate; latency counts from the due moment
CPU ms: of all processes, per proven answer
default: hypotheses for Sudokus; plain: without them, as the peers
beside ours: CPU time per proof divided by that of hrm-serve's default in the same round;
             median (lowest to highest)
fixed: batches of 16; until-proven: one puzzle at a time. MB: all processes"""


class Peer(NamedTuple):
    """A server and how it is started."""

    server: str
    form: str

    def command(self, python: Path, bundle: Bundle) -> list[str]:
        if self.server == OURS:
            return loading.serve_command(str(bundle.path), "--engine=cpu:fp32", "--threads=1")
        rooms = [str(Path(room.__path__[0]).parent) for room in ROOMS]
        path = os.pathsep.join([str(FOLDER), *rooms])
        program = (str(python.absolute()), f"{self.server}_server.py")
        batch = BATCH_OF[self.form]
        options = (f"--bundle={bundle.path}", f"--form={self.form}", f"--batch={batch}")
        return ["env", "-C", str(FOLDER), f"PYTHONPATH={path}", *program, *options]

    def body(self, puzzle: object) -> bytes:
        question: dict[str, object] = {"puzzle": puzzle}
        if self.form == "plain":
            question["how"] = "plain"
        return json.dumps(question).encode()


class PuzzleLoad(NamedTuple):
    """Puzzles of one kind, as text, for one bundle."""

    name: str
    bundle: Bundle
    texts: Sequence[object]

    @classmethod
    def named(cls, name: str, num_puzzles: int, seed: int) -> PuzzleLoad:
        model, difficulty = LOADS[name]
        bundle = open_bundle(model)
        puzzle = bundle.puzzle
        questions = questions_made(puzzle, num_puzzles, difficulty=difficulty, seed=seed)
        return cls(name=name, bundle=bundle, texts=texts_of(puzzle, questions))


def rows_of(loads: Sequence[PuzzleLoad], servers: Sequence[str], options: PeerOptions) -> list[Row]:
    """A row per load and server, with medians over the rounds in which all take turns."""
    peers = [Peer(server=OURS, form=form) for form in OUR_FORMS]
    for server, form in itertools.product(servers, BATCH_OF):
        peers.append(Peer(server, form))
    rows: list[Row] = []
    for load in loads:
        turns: defaultdict[Peer, list[Row]] = defaultdict(list)
        for number in range(1, options.rounds + 1):
            tell(f"{load.name}, round {number} of {options.rounds}")
            for peer in peers:
                command = peer.command(options.python, load.bundle)
                with loading.running(command) as server:
                    turns[peer].append(asyncio.run(_measured(server, peer, load, options)))
        for peer, of_peer in turns.items():
            figures = summary(of_peer, turns[peers[0]])
            rows.append({"load": load.name, "server": peer.server, "form": peer.form, **figures})
    return rows


async def _measured(
    server: loading.RunningServer, peer: Peer, load: PuzzleLoad, options: PeerOptions
) -> Row:
    bodies = [peer.body(text) for text in load.texts]
    connections = options.connections
    async with loading.session(server.url) as http:
        await loading.closed_loop(http, bodies[:WARM_UP], connections)
        asking = asyncio.ensure_future(loading.closed_loop(http, bodies, connections))
        spent = await loading.spent_on(server, asking)
        replies = asking.result()
        late = await loading.open_loop(http, bodies, options.rate, options.seed)
    num_proven = sum(reply.answer["verified"] for reply in replies)
    return {
        **spent,
        **loading.percentiles_ms("", replies),
        **loading.percentiles_ms("open_", late),
        "num_proven": num_proven,
        "cpu_ms_a_proof": spent["cpu_ms"] * len(bodies) / max(1, num_proven),
    }


def summary(rows: Sequence[Row], ours: Sequence[Row]) -> Row:
    """Return the median of each figure over the rounds.

    `ratio` is the CPU time per proof over ours in the same round, with its range.
    """
    ratios: list[float] = []
    for row, own in zip(rows, ours, strict=True):
        ratios.append(row["cpu_ms_a_proof"] / own["cpu_ms_a_proof"])
    return {
        **medians_of(rows),
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }
