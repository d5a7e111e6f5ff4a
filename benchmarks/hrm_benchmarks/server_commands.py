"""The subcommands of `hrm-bench` that start a server: throughput, peers, start.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

from typer import Option

from hrm_benchmarks.command import (
    BundleOrScript,
    Csv,
    Easiest,
    EngineOption,
    Measurement,
    Puzzles,
    Seed,
    Slots,
    Threads,
    TurnRounds,
    chosen,
    in_table,
    measured,
    opened_bundle,
    questions_for,
)
from hrm_benchmarks.report import Row

PROMISED_STARTS = ("sudoku", "sudoku-6x6 --engine cpu:int8")  # see docs/promises.md


@measured(
    "throughput --bundle sudoku --slots 4",
    groups={"Bundle": "bundle engine threads csv difficulty puzzles"},
)
def throughput(
    bundle: BundleOrScript = None,
    engine: EngineOption = "cpu",
    threads: Threads = 1,
    csv: Csv = None,
    difficulty: Easiest = None,
    puzzles: Puzzles = 200,
    offered: Annotated[
        float, Option(min=1, help="Puzzles per second offered to /solve/batch.")
    ] = 2000.0,
    connections: Annotated[
        int, Option(min=1, help="Connections when measuring the maximum rate of /solve.")
    ] = 32,
    seconds: Annotated[float, Option(min=1, help="Seconds per measurement.")] = 10.0,
    slots: Slots = 32,
    seed: Seed = 0,
) -> Measurement:
    """Send as many puzzles through HTTP as a server takes, and measure the latency below that.

    Without --bundle a scripted engine that costs nothing replaces the model.
    """
    from hrm_benchmarks import throughput
    from hrm_benchmarks.scripted import Scripted
    from hrm_benchmarks.server import bundle_target, running, scripted_target

    queue_limit = 16 * slots
    if bundle is None:
        script = Scripted(segments="geo3", slots=slots, queue_limit=queue_limit, seed=seed)
        target = scripted_target(script)
    else:
        opened = opened_bundle(bundle)
        questions = questions_for(opened, csv, difficulty, puzzles, seed)
        target = bundle_target(
            opened,
            questions,
            engine=engine,
            threads=threads,
            slots=slots,
            queue_limit=queue_limit,
        )
    with running(target.command) as server:
        measuring = throughput.measure(
            server, target, offered, connections=connections, seconds=seconds, seed=seed
        )
        passages = asyncio.run(measuring)
    return in_table(
        "passages",
        passages,
        throughput.COLUMNS,
        title=target.title,
        caption=throughput.LEGEND,
    )


@measured("peers --python .peers/bin/python --out peers")
def peers(
    python: Annotated[
        Path, Option(help="Python of an environment with benchmarks/peers/requirements.txt.")
    ] = Path(".peers/bin/python"),
    server: Annotated[
        list[str] | None, Option(help="Peer to measure; may be repeated. Default: all.")
    ] = None,
    load: Annotated[
        list[str] | None, Option(help="Load to send; may be repeated. Default: all.")
    ] = None,
    puzzles: Puzzles = 150,
    connections: Annotated[int, Option(min=1, help="Connections of the closed loop.")] = 16,
    rate: Annotated[float, Option(min=0.1, help="Puzzles per second of the open loop.")] = 20.0,
    rounds: TurnRounds = 3,
    seed: Seed = 0,
    out: Annotated[
        Path | None, Option(help="Also write PATH.md, PATH.json and the picture PATH.png.")
    ] = None,
) -> Measurement:
    """Serve the same graph with LitServe, Ray Serve, BentoML and FastAPI, beside hrm-serve."""
    from hrm_benchmarks import peers

    names = chosen(load, peers.LOADS, "load")
    servers = chosen(server, peers.SERVERS, "peer")
    loads: list[peers.PuzzleLoad] = []
    for name in names:
        bundle, _ = peers.LOADS[name]
        loads.append(peers.PuzzleLoad.named(name, opened_bundle(bundle), puzzles, seed))
    plan = peers.PeerPlan(
        python=python, rounds=rounds, connections=connections, rate=rate, seed=seed
    )
    rows = peers.measure(loads, servers, plan)
    sizes = f"{puzzles} puzzles, {connections} connections, {rate:g} arrivals a second"
    title = f"{sizes}, {rounds} rounds"
    if out is not None:
        peers.save(out, title, rows)
    return in_table(
        "servers",
        rows,
        peers.COLUMNS,
        title=title,
        caption=peers.CAPTION,
        left=["load", "server", "form"],
    )


@measured("start --server 'sudoku-6x6 --engine cpu:int8' --rounds 5")
def start(
    server: Annotated[
        list[str] | None,
        Option(
            help="Arguments of hrm-serve; may be repeated. Default: sudoku, sudoku-6x6 in INT8."
        ),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Number of starts, after one warm-up start.")] = 3,
) -> Measurement:
    """Time hrm-serve until it is ready, and measure the memory of both processes."""
    from hrm_benchmarks import start

    starts: list[Row] = []
    for arguments in server or PROMISED_STARTS:
        starts.append(start.measure(shlex.split(arguments), rounds=rounds))
    return in_table("starts", starts, start.COLUMNS, left=["hrm-serve"])
