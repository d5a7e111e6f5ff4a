"""The commands of `hrm-bench` that start a real server: load, throughput, soak, start."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from hrm_benchmarks.costs import Cost
from hrm_benchmarks.report import paper
from hrm_benchmarks.serving import load_report, starting
from hrm_benchmarks.serving import soak as soaking
from hrm_benchmarks.serving import throughput as passing
from hrm_benchmarks.serving.contestants import over_bundle, over_script
from hrm_benchmarks.serving.load import Plan, measure
from hrm_benchmarks.serving.running import running
from hrm_benchmarks.serving.scripted import Scripted

SCRIPT = "script"
SHARES = (0.5, 0.8, 0.95)
PROMISED = ("sudoku", "sudoku-6x6 --engine cpu:int8")


def register(app: typer.Typer) -> None:
    """Add them to the command line."""
    app.command(epilog="Example: hrm-bench load --bundle sudoku-6x6 --difficulty minimal --picture load.png")(load)
    app.command(epilog="Example: hrm-bench soak --requests 1000000 --json > soak.json")(soak)
    app.command(epilog="Example: hrm-bench throughput --offered 2000")(throughput)
    app.command(epilog="Example: hrm-bench start --server 'sudoku-6x6 --engine cpu:int8' --rounds 5")(start)


def load(
    bundle: Annotated[str, typer.Option(help="Bundle's directory or shipped name, or 'script'.")] = "sudoku",
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="Bundle: as in hrm-serve.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Bundle: threads of its engine.")] = 1,
    csv: Annotated[Path | None, typer.Option(help="Bundle: puzzles in Sudoku-Extreme form; else generated.")] = None,
    difficulty: Annotated[str | None, typer.Option(help="Bundle: of generated puzzles; else the easiest.")] = None,
    segments: Annotated[str, typer.Option(help="Script: geo3 geo5 geo8 bim3 bim5 bim8, or a recorded JSON.")] = "geo5",
    step_ms: Annotated[float, typer.Option(min=0, help="Script: what a step costs.")] = 20.0,
    cost: Annotated[Cost, typer.Option(help="Script: how that grows with the rows of a step.")] = "half",
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 4,
    queue_limit: Annotated[int, typer.Option(min=0, help="Places of its queue.")] = 64,
    puzzles: Annotated[int, typer.Option(min=1, help="How many different ones.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="How long each load is offered.")] = 60.0,
    saturation_s: Annotated[float, typer.Option(min=1, help="How long capacity is measured.")] = 20.0,
    share: Annotated[list[float] | None, typer.Option(help="Load, may be repeated. [0.5, 0.8, 0.95]")] = None,
    slo_ms: Annotated[float | None, typer.Option(help="Goodput: answers within; else 5 full services.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and arrivals.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the latencies into this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Offer Poisson arrivals at shares of the server's measured capacity, and compare with a simulation."""
    settings = dict[str, object](locals())
    with refusals_in_one_sentence():
        if bundle == SCRIPT:
            one = over_script(
                Scripted(
                    segments=segments,
                    step_ms=step_ms,
                    cost=cost,
                    num_slots=slots,
                    queue_limit=queue_limit,
                    num_puzzles=puzzles,
                    seed=seed,
                )
            )
        else:
            one = over_bundle(
                bundle,
                engine=engine,
                threads=threads,
                num_slots=slots,
                queue_limit=queue_limit,
                csv=csv,
                difficulty=difficulty,
                num_puzzles=puzzles,
                seed=seed,
            )
        plan = Plan(
            shares=tuple(share or SHARES),
            seconds=seconds,
            saturation_s=saturation_s,
            num_slots=slots,
            queue_limit=queue_limit,
            max_segments=one.max_segments,
            slo_s=None if slo_ms is None else slo_ms / 1e3,
            seed=seed,
        )
        with running(one.command) as server:
            found = asyncio.run(measure(server, one.bodies, plan, tell()))
            server.stop()
    if picture is not None:
        load_report.save_picture(picture, one.title, found)
    if json:
        print(load_report.as_json({"title": one.title, **settings}, found))
    else:
        load_report.print_found(one.title, found, paper())


def soak(
    requests: Annotated[int, typer.Option(min=1, help="How many, half of them as lines of batches.")] = 100_000,
    streams: Annotated[int, typer.Option(min=1, help="Connections that send batches.")] = 4,
    singles: Annotated[int, typer.Option(min=1, help="Connections that ask for one puzzle after another.")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the puzzles.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the account.")] = False,
) -> None:
    """Send very many requests to a server over a scripted engine: each answered once and right, and nothing leaks."""
    one = over_script(Scripted(segments="geo3", num_slots=slots, queue_limit=8 * slots, seed=seed))
    with refusals_in_one_sentence(), running(one.command) as server:
        findings = asyncio.run(
            soaking.soak(
                server,
                one.bodies,
                one.solutions,
                num_requests=requests,
                num_streams=streams,
                num_singles=singles,
                tell=tell(),
            )
        )
        server.stop()
    if json:
        print(soaking.as_json(findings))
    else:
        soaking.print_findings(findings, paper())
    raise typer.Exit(1 if findings.faults else 0)


def throughput(
    offered: Annotated[float, typer.Option(min=1, help="Puzzles per second offered through /solve/batch.")] = 2000.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections for the ceiling of /solve.")] = 32,
    seconds: Annotated[float, typer.Option(min=1, help="How long each way in is measured.")] = 10.0,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Send as many puzzles through HTTP as it takes, over a scripted engine that costs nothing."""
    settings = dict[str, object](locals())
    one = over_script(Scripted(segments="geo3", num_slots=slots, queue_limit=16 * slots))
    with refusals_in_one_sentence(), running(one.command) as server:
        passages = asyncio.run(
            passing.measure(server, one.bodies, offered=offered, connections=connections, seconds=seconds, tell=tell())
        )
        server.stop()
    if json:
        print(passing.as_json(settings, passages))
    else:
        passing.print_passages(one.title, passages, paper())


def start(
    server: Annotated[
        list[str] | None, typer.Option(help="Arguments of hrm-serve, may be repeated; else the two that are promised.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each, after one that does not count.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Time hrm-serve from its start until it is ready, and weigh both processes."""
    with refusals_in_one_sentence():
        starts = [
            starting.measure(shlex.split(arguments), rounds=rounds, tell=tell()) for arguments in server or PROMISED
        ]
    if json:
        print(starting.as_json(starts))
    else:
        starting.print_starts(starts, paper())


def tell() -> Callable[[str], object]:
    """Progress, on standard error."""
    console = Console(stderr=True)
    return lambda line: console.print(line, style="dim", highlight=False)


def _leave(signal_number: int, _: object) -> NoReturn:
    sys.exit(128 + signal_number)


@contextlib.contextmanager
def refusals_in_one_sentence() -> Generator[None]:
    """SIGTERM becomes an exception meanwhile, so that it does not leave a server behind."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except ValueError as error:
        print(f"hrm-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    finally:
        signal.signal(signal.SIGTERM, before)
