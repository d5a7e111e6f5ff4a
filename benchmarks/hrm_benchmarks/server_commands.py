"""The subcommands of `hrm-bench` that start a server: soak, chaos, throughput, start.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import asyncio
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

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
from hrm_benchmarks.report import Row, paper

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

PROMISED_STARTS = ("sudoku", "sudoku-6x6 --engine cpu:int8")  # see docs/promises.md


@measured("soak --requests 1000000 --json > soak.json")
def soak(
    requests: Annotated[
        int, Option(min=1, help="Number of requests; half of them are lines of batches.")
    ] = 100_000,
    streams: Annotated[int, Option(min=1, help="Connections that send batches.")] = 4,
    singles: Annotated[int, Option(min=1, help="Connections that send single puzzles.")] = 16,
    slots: Slots = 32,
    seed: Seed = 0,
) -> Measurement:
    """Send many requests to a scripted engine; each is answered once, and nothing leaks."""
    from hrm_benchmarks import soak
    from hrm_benchmarks.scripted import Scripted
    from hrm_benchmarks.server import running, scripted_target

    script = Scripted(segments="geo3", slots=slots, queue_limit=8 * slots, seed=seed)
    target = scripted_target(script)
    with running(target.command) as server:
        measuring = soak.measure(server, target, requests, num_streams=streams, num_singles=singles)
        figures = asyncio.run(measuring)
    return Measurement(figures=figures, show=partial(soak.print_soak, figures), title=target.title)


@measured("chaos --minutes 10 --json > chaos.json")
def chaos(
    bundle: Annotated[str, Option(help="Bundle directory or shipped name.")] = "sudoku-6x6",
    minutes: Annotated[float, Option(min=0.05, help="Duration in minutes.")] = 10.0,
    every_s: Annotated[float, Option(min=0.1, help="Seconds between two faults.")] = 3.0,
    puzzles: Puzzles = 200,
    seed: Seed = 0,
    attack: Annotated[
        str | None,
        Option(help="Run only this attack and measure /livez; all runs every attack in turn."),
    ] = None,
    senders: Annotated[int, Option(min=1, help="Number of attacking connections.")] = 8,
) -> Measurement:
    """Kill, stop, reload and flood a server while others send puzzles and check the answers."""
    from hrm_benchmarks import chaos

    opened = opened_bundle(bundle)
    seconds = 60 * minutes
    if attack is None:
        questions = questions_for(opened, None, None, puzzles, seed)
        plan = chaos.Plan(seconds=seconds, every_s=every_s, seed=seed)
        figures = chaos.measure(opened, questions, plan)
    else:
        figures = dict(_attacks(opened, attack, senders, seconds))
    lines = [f"{name}: {value}" for name, value in figures.items()]
    show = partial(paper().print, *lines, sep="\n", highlight=False)
    return Measurement(figures=figures, show=show)


def _attacks(
    bundle: "Bundle", attack: str, senders: int, seconds: float
) -> Iterator[tuple[str, Row]]:
    from hrm_benchmarks import attacks, server

    names = attacks.NAMES if attack == "all" else [attack]
    if not set(names) <= set(attacks.NAMES):
        known = ", ".join(attacks.NAMES)
        raise BadParameter(f"{attack!r} is not an attack: use all or one of {known}")
    options = ("--engine=cpu", "--threads=1", "--slots=4", "--queue-limit=16")
    command = server.serve_command(str(bundle.path), *options)
    for name in names:
        yield name, attacks.attacked(command, name, senders=senders, seconds=seconds)


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
