"""The subcommands of `hrm-bench`."""

import asyncio
import itertools
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hrm_benchmarks import accuracy as accuracy_bench
from hrm_benchmarks import chaos as chaos_bench
from hrm_benchmarks import load as load_bench
from hrm_benchmarks import policies, processes, segments
from hrm_benchmarks.report import Rounds, Row, leaving_at_sigterm, paper, print_json, print_table, tell
from hrm_benchmarks.scripted import Cost, Scripted
from hrm_benchmarks.server import bundle_target, running, scripted_target
from hrm_edge_runtime.batching.halting import PolicyKind
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.solve.solvers import from_bundle, options_of
from hrm_host.command import Command

app = Command("hrm-bench", extra="serve,bench", no_args_is_help=True)

SHARES = (0.5, 0.8, 0.95)
PROMISED = ("sudoku", "sudoku-6x6 --engine cpu:int8")
ATTEMPTS = (1, 4, 16, 64)

BundleName = Annotated[str | None, typer.Option(help="Bundle's directory or shipped name; else the default.")]
Csv = Annotated[Path | None, typer.Option(help="Puzzles in Sudoku-Extreme form; else generated.")]
Difficulty = Annotated[str | None, typer.Option(help="Of generated puzzles; else the easiest.")]
Segments = Annotated[str, typer.Option(help="geo3 geo5 geo8 bim3 bim5 bim8, or a recorded JSON.")]
StepMs = Annotated[float, typer.Option(min=0, help="What a step costs.")]
StepCost = Annotated[Cost, typer.Option(help="How that grows with the rows of a step.")]
TurnRounds = Annotated[int, typer.Option(min=1, help="How often each takes its turn; figures are medians.")]
TurnS = Annotated[float, typer.Option(min=0, help="Seconds of one turn, at least a step.")]
CpuClock = Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")]


@app.callback()
def bench() -> None:
    """Measure what serving and training cost, beside honest baselines."""


@app.command(
    groups={
        "Bundle": "bundle csv difficulty precision policy threads cpu_clock",
        "Script": "segments step_ms cost virtual_time",
    },
    epilog="Example: hrm-bench serve --bundle model.bundle --csv test.csv --puzzles 64 --slots 4",
)
def serve(
    bundle: Annotated[str | None, typer.Option(help="Engine to measure: a bundle's directory or shipped name.")] = None,
    csv: Csv = None,
    difficulty: Difficulty = None,
    precision: Annotated[str, typer.Option(help="Which of its graphs.")] = "fp32",
    policy: Annotated[PolicyKind | None, typer.Option(help="Halting rule; else its own.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine, under every policy.")] = 1,
    cpu_clock: Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")] = False,
    segments: Segments = "geo5",
    step_ms: StepMs = 20.0,
    cost: StepCost = "flat",
    virtual_time: Annotated[bool, typer.Option(help="Count the time instead of spending it.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="Slots; the batch of the policies that batch.")] = 8,
    puzzles: Annotated[int, typer.Option(min=1, help="How many, the same under every policy.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often; figures are medians.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and scripts.")] = 0,
    json: Json = False,
) -> None:
    """Serve the same puzzles under five policies: refill, fixed, wait for the slowest, compaction, one at a time.

    Without --bundle a scripted engine stands in for the model, so that the figures are the batching's own.
    """
    settings = dict[str, object](locals())
    script = Scripted(segments=segments, puzzles=puzzles, slots=slots, step_ms=step_ms, cost=cost, seed=seed)
    with leaving_at_sigterm():
        if bundle is None:
            made = policies.scripted_bench(script, virtual=virtual_time)
        else:
            opened = Bundle.open(find_bundle(bundle))
            asked = policies.questions_for(opened, csv, difficulty, puzzles, seed)
            made = policies.bundle_bench(opened, asked, precision, policy, slots, threads, cpu_clock=cpu_clock)
    found = policies.measure(made, rounds=rounds)
    made.engine.close()
    if json:
        print_json({"title": made.title, **settings}, runs=found)
    else:
        policies.print_figures(made.title, found)


@app.command(epilog="Example: hrm-bench segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleName = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="ENGINE[:PRECISION], may be repeated; else cpu in each precision.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Also PyTorch, eager and compiled, with its weights.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Puzzles in a step, may be repeated. [1, 8]")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 1,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 0.5,
    cpu_clock: CpuClock = False,
    json: Json = False,
) -> None:
    """Time one segment on every engine in turns, and show by operator where a CPU's time goes."""
    settings = dict[str, object](locals())
    batches, plan = batch or [1, 8], Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    with leaving_at_sigterm():
        opened = Bundle.open(find_bundle(bundle))
        precisions = opened.manifest.precisions
        engines = engine or [f"cpu:{precision}" for precision in precisions]
        found = segments.measure(opened, engines, batches, plan, num_threads=threads, checkpoint=checkpoint)
        operators = {name: segments.operator_ms(opened, name, batches[-1], threads) for name in precisions}
    if json:
        print_json(settings, runs=found, operator_ms=operators)
    else:
        title = f"{opened.manifest.name}, {threads} threads, {plan.title}"
        print_table(title, segments.COLUMNS, found, caption=segments.CAPTION, left=["engine"])
        segments.print_operators(operators)


@app.command(epilog="Example: hrm-bench train --preset small --threads 1 --rounds 9 --compile")
def train(
    preset: Annotated[str, typer.Option(help="Model size: small, log or published.")] = "small",
    puzzle: Annotated[str, typer.Option(help="Which puzzle; some are generated as training rows.")] = "sudoku",
    batch: Annotated[int, typer.Option(min=1, help="Rows of one update, under every trainer.")] = 32,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each; without it, all cores.")] = None,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 1.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Our trainer also through torch.compile.")] = False,
    cpu_clock: CpuClock = False,
    json: Json = False,
) -> None:
    """Train by the published step, written plainly, and by our trainer, in turns and with equal losses."""
    settings = dict[str, object](locals())
    try:
        from hrm_benchmarks.desktop import training
    except ModuleNotFoundError as error:
        typer.echo(f"hrm-bench train needs {error.name}: run pip install 'hrm-edge[train,serve]'.", err=True)
        raise typer.Exit(1) from error
    plan = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    with leaving_at_sigterm():
        trainers = training.contestants(preset, puzzle, batch_size=batch, num_threads=threads, compiled=compiled)
        found = training.measure(trainers, plan)
    if json:
        print_json(settings, machine={"torch": training.torch.__version__}, runs=found)
    else:
        threads = trainers[0].num_threads
        title = f"{preset}, {puzzle}, batch {batch}, {threads} threads, {plan.title}"
        print_table(title, training.COLUMNS, found, caption=training.LEGEND, left=["trainer"])


@app.command(
    groups={"Puzzles": "questions puzzles difficulty seed", "Engine": "engine slots threads"},
    epilog="Example: hrm-bench accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
)
def accuracy(
    bundle: Annotated[
        list[str] | None, typer.Option(help="Bundle's directory or shipped name, may be repeated; else the default.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="One in each line, CSV in the published form, or NDJSON; else generated.")
    ] = None,
    difficulty: Annotated[str | None, typer.Option(help="Of generated puzzles; else the hardest.")] = None,
    puzzles: Annotated[int, typer.Option(min=1, help="How many: the first of the file, or so many generated.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of generated puzzles.")] = 0,
    attempts: Annotated[
        list[int] | None, typer.Option(min=1, max=1024, help="Attempts at each, may be repeated. [1, 4, 16, 64]")
    ] = None,
    max_segments: Annotated[int | None, typer.Option(min=1, help="Of each attempt; else the model's limit.")] = None,
    how: Annotated[str | None, typer.Option(help="plain or hypotheses, as in hrm-solve.")] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Attempts in one batch.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every puzzle, in place of the table.")] = False,
) -> None:
    """Solve the same puzzles with each model and number of attempts, and count the CPU time to a proven answer."""
    settings, found = dict[str, object](locals()), list[Row]()
    with leaving_at_sigterm():
        models = [Bundle.open(find_bundle(name)) for name in bundle or [None]]
        puzzle = accuracy_bench.provable(models)
        known = (
            accuracy_bench.puzzles_from_file(questions, puzzle, puzzles)
            if questions is not None
            else accuracy_bench.generated(puzzle, difficulty or puzzle.difficulties[-1], puzzles, seed)
        )
        options = options_of({"max_segments": max_segments, "how": how})
        for opened, level in itertools.product(models, attempts or ATTEMPTS):
            choice = choose(opened, engine, num_slots=slots)
            solver = from_bundle(opened, choice, num_slots=slots, num_threads=threads)
            row = accuracy_bench.measure(solver.solve_all, puzzle, known, level, **options)
            found.append({**accuracy_bench.about(opened, choice.precision), **row})
            tell(accuracy_bench.PROGRESS.format(**found[-1]))
        title = (
            f"{puzzle.name}, {len(known)} puzzles, up to {max_segments or 'all'} segments, {engine}, {threads} threads"
        )
    if json:
        print_json(settings, levels=found)
    else:
        print_table(title, accuracy_bench.COLUMNS, found, caption=accuracy_bench.LEGEND, left=["model"])


@app.command(
    groups={
        "Bundle": "bundle engine threads csv difficulty",
        "Script": "segments step_ms cost",
    },
    epilog="Example: hrm-bench load --bundle sudoku-6x6 --difficulty minimal --picture load.png",
)
def load(
    bundle: Annotated[str, typer.Option(help="Bundle's directory or shipped name, or 'script'.")] = "sudoku",
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of its engine.")] = 1,
    csv: Csv = None,
    difficulty: Difficulty = None,
    segments: Segments = "geo5",
    step_ms: StepMs = 20.0,
    cost: StepCost = "half",
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 4,
    queue_limit: Annotated[int, typer.Option(min=0, help="Places of its queue.")] = 64,
    puzzles: Annotated[int, typer.Option(min=1, help="How many different ones.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="How long each load is offered.")] = 60.0,
    saturation_s: Annotated[float, typer.Option(min=1, help="How long capacity is measured.")] = 20.0,
    share: Annotated[list[float] | None, typer.Option(help="Load, may be repeated. [0.5, 0.8, 0.95]")] = None,
    slo_ms: Annotated[float | None, typer.Option(help="Goodput: answers within; else 5 full services.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and arrivals.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the latencies into this file.")] = None,
    json: Json = False,
) -> None:
    """Offer Poisson arrivals at shares of the server's measured capacity, and compare with a simulation."""
    settings = dict[str, object](locals())
    script = Scripted(
        segments=segments, step_ms=step_ms, cost=cost, slots=slots, queue_limit=queue_limit, puzzles=puzzles, seed=seed
    )
    with leaving_at_sigterm():
        if bundle == "script":
            target = scripted_target(script)
        else:
            opened = Bundle.open(find_bundle(bundle))
            asked = policies.questions_for(opened, csv, difficulty, puzzles, seed)
            target = bundle_target(opened, asked, engine, threads=threads, num_slots=slots, queue_limit=queue_limit)
        shares, slo_s = share or SHARES, None if slo_ms is None else slo_ms / 1e3
        with running(target.command) as server:
            measuring = load_bench.measure(
                server, target, shares, seconds=seconds, saturation_s=saturation_s, slo_s=slo_s, seed=seed
            )
            found, latencies = asyncio.run(measuring)
        if picture is not None:
            load_bench.save_picture(picture, target.title, found["levels"], latencies)
    if json:
        print_json({"title": target.title, **settings}, **found)
    else:
        load_bench.print_report(target.title, found)


@app.command(epilog="Example: hrm-bench soak --requests 1000000 --json > soak.json")
def soak(
    requests: Annotated[int, typer.Option(min=1, help="How many, half of them as lines of batches.")] = 100_000,
    streams: Annotated[int, typer.Option(min=1, help="Connections that send batches.")] = 4,
    singles: Annotated[int, typer.Option(min=1, help="Connections that ask for one puzzle after another.")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the puzzles.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the account.")] = False,
) -> None:
    """Send very many requests to a server over a scripted engine: each answered once and right, and nothing leaks."""
    settings = dict[str, object](locals())
    target = scripted_target(Scripted(segments="geo3", slots=slots, queue_limit=8 * slots, seed=seed))
    with leaving_at_sigterm(), running(target.command) as server:
        found = asyncio.run(processes.soak(server, target, requests, num_streams=streams, num_singles=singles))
    if json:
        print_json(settings, **found)
    else:
        title = f"{found['requests']} requests in {found['seconds']:.0f} s"
        print_table(title, processes.SOAK_COLUMNS, processes.soak_rows(found))
        paper().print("; ".join(found["faults"]) or "every request answered once and right, nothing left behind")
    raise typer.Exit(1 if found["faults"] else 0)


@app.command(epilog="Example: hrm-bench chaos --minutes 10 --json > chaos.json")
def chaos(
    bundle: Annotated[str, typer.Option(help="Bundle's directory or shipped name.")] = "sudoku-6x6",
    minutes: Annotated[float, typer.Option(min=0.05, help="How long.")] = 10.0,
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two troubles.")] = 3.0,
    puzzles: Annotated[int, typer.Option(min=1, help="How many different ones.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and troubles.")] = 0,
    json: Json = False,
) -> None:
    """Kill, stop, reload, flood and stall a server: others are answered once and right, or told why not."""
    settings = dict[str, object](locals())
    with leaving_at_sigterm():
        opened = Bundle.open(find_bundle(bundle))
        asked = policies.questions_for(opened, None, None, puzzles, seed)
        found = chaos_bench.measure(opened, asked, seconds=60 * minutes, every_s=every_s, seed=seed)
    if json:
        print_json(settings, **found)
    else:
        paper().print(*(f"{name}: {shown}" for name, shown in found.items()), sep="\n", highlight=False)
    raise typer.Exit(1 if found["faults"] else 0)


@app.command(epilog="Example: hrm-bench throughput --offered 2000")
def throughput(
    offered: Annotated[float, typer.Option(min=1, help="Puzzles per second offered through /solve/batch.")] = 2000.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections for the ceiling of /solve.")] = 32,
    seconds: Annotated[float, typer.Option(min=1, help="How long each way in is measured.")] = 10.0,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
    json: Json = False,
) -> None:
    """Send as many puzzles through HTTP as it takes, over a scripted engine that costs nothing, beside a bare echo."""
    settings = dict[str, object](locals())
    target = scripted_target(Scripted(segments="geo3", slots=slots, queue_limit=16 * slots))
    echo_command = [sys.executable, "-m", "hrm_benchmarks.echo"]
    with leaving_at_sigterm(), running(target.command) as server, running(echo_command) as echo:
        found = asyncio.run(
            processes.throughput(server, echo, target, offered, connections=connections, seconds=seconds)
        )
    if json:
        print_json(settings, passages=found)
    else:
        print_table(target.title, processes.PASSAGE_COLUMNS, found)


@app.command(epilog="Example: hrm-bench start --server 'sudoku-6x6 --engine cpu:int8' --rounds 5")
def start(
    server: Annotated[
        list[str] | None, typer.Option(help="Arguments of hrm-serve, may be repeated; else the two that are promised.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each, after one that does not count.")] = 3,
    json: Json = False,
) -> None:
    """Time hrm-serve from its start until it is ready, and weigh both processes."""
    with leaving_at_sigterm():
        found = [processes.start(shlex.split(one), rounds=rounds) for one in server or PROMISED]
    if json:
        print_json({}, starts=found)
    else:
        print_table("", processes.START_COLUMNS, found, left=["hrm-serve"])
