"""The subcommands of `hrm-bench`: serve, segment, train, compare, accuracy, and those of a server.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import asyncio
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from typer import BadParameter, Option

from hrm_benchmarks.command import (
    BundleOption,
    BundleOrScript,
    CpuClock,
    Csv,
    Easiest,
    EngineOption,
    Hardest,
    Measurement,
    Puzzles,
    Seed,
    Slots,
    Threads,
    TurnRounds,
    TurnS,
    app,
    measured,
)
from hrm_benchmarks.report import Rounds, Row, paper, print_table, tell
from hrm_edge_runtime.contract.halting import PolicyKind

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_puzzles.data.sources import Questions

DESKTOP = "train,serve,bench"  # extras of the commands that train
PROMISED_STARTS = ("sudoku", "sudoku-6x6 --engine cpu:int8")  # see docs/promises.md
ATTEMPTS = (1, 4, 16, 64)
BATCHES = (1, 8)
SEEDS = (0, 1)
COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")


@app.callback()
def bench() -> None:
    """Measure serving and training, beside honest baselines."""


def _open(name: str | None) -> "Bundle":
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle

    return Bundle.open(find_bundle(name))


def _questions(
    bundle: "Bundle", csv: Path | None, difficulty: str | None, num_puzzles: int, seed: int
) -> "Questions":
    """Return puzzles of a file, or generated ones; by default the easiest."""
    from hrm_puzzles.data.sources import questions_from_csv, questions_made

    puzzle = bundle.puzzle
    if csv is not None:
        return questions_from_csv(csv, puzzle).sample(num_puzzles, seed)
    easiest = next(iter(puzzle.difficulties), "")  # a puzzle that cannot be generated has none
    return questions_made(puzzle, num_puzzles, difficulty=difficulty or easiest, seed=seed)


@measured(
    "serve --bundle model.bundle --csv test.csv --puzzles 64 --slots 4",
    groups={
        "Bundle": "bundle csv difficulty precision policy threads cpu_clock",
        "Script": "segments step_ms cost virtual_time",
    },
)
def serve(
    bundle: BundleOrScript = None,
    csv: Csv = None,
    difficulty: Easiest = None,
    precision: Annotated[str, Option(help="Graph of the bundle: fp32, fp16 or int8.")] = "fp32",
    policy: Annotated[PolicyKind | None, Option(help="Halting rule; else the bundle's.")] = None,
    threads: Threads = 1,
    cpu_clock: CpuClock = False,
    segments: Annotated[
        str, Option(help="geo3 geo5 geo8 bim3 bim5 bim8, or a recorded JSON.")
    ] = "geo5",
    step_ms: Annotated[float, Option(min=0, help="Milliseconds of a step.")] = 20.0,
    cost: Annotated[
        Literal["flat", "half", "linear"],
        Option(help="How the time of a step grows with its rows."),
    ] = "flat",
    virtual_time: Annotated[
        bool, Option(help="Count the time of steps instead of spending it.")
    ] = False,
    slots: Annotated[
        int, Option(min=1, help="Slots; also the batch of the policies that batch.")
    ] = 8,
    puzzles: Puzzles = 200,
    rounds: Annotated[int, Option(min=1, help="Rounds; figures are medians.")] = 1,
    seed: Seed = 0,
) -> Measurement:
    """Serve the same puzzles by five policies: refill, fixed, slowest, compaction, one at a time.

    Without --bundle a scripted engine replaces the model, so that only the batching counts.
    """
    from hrm_benchmarks import policies
    from hrm_benchmarks.scripted import RealClock, Scripted, VirtualClock

    if bundle is None:
        script = Scripted(
            segments=segments, puzzles=puzzles, slots=slots, step_ms=step_ms, cost=cost, seed=seed
        )
        clock = VirtualClock() if virtual_time else RealClock()
        made = policies.scripted_bench(script, clock)
    else:
        opened = _open(bundle)
        questions = _questions(opened, csv, difficulty, puzzles, seed)
        made = policies.bundle_bench(
            opened,
            questions,
            precision=precision,
            kind=policy,
            num_slots=slots,
            num_threads=threads,
            cpu_clock=cpu_clock,
        )
    runs = policies.measure(made, rounds=rounds)
    made.engine.close()
    show = partial(policies.print_figures, made.title, runs)
    return Measurement(figures={"runs": runs}, show=show, title=made.title)


@measured("segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleOption = None,
    engine: Annotated[
        list[str] | None,
        Option(help="ENGINE[:PRECISION], may be repeated; else cpu in each precision."),
    ] = None,
    checkpoint: Annotated[
        Path | None, Option(help="Also PyTorch, eager and compiled, with these weights.")
    ] = None,
    batch: Annotated[
        list[int] | None, Option(min=1, help="Puzzles in a step, may be repeated. [1, 8]")
    ] = None,
    threads: Threads = 1,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 0.5,
    cpu_clock: CpuClock = False,
) -> Measurement:
    """Time one segment on every engine, in turns."""
    from hrm_benchmarks import segments

    opened = _open(bundle)
    manifest = opened.manifest
    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    engines = engine or [f"cpu:{precision}" for precision in manifest.precisions]
    runs = segments.measure(
        opened, engines, batch or BATCHES, turns, num_threads=threads, checkpoint=checkpoint
    )
    title = f"{manifest.name}, {threads} threads, {turns.title}"
    show = partial(
        print_table, title, segments.COLUMNS, runs, caption=segments.CAPTION, left=["engine"]
    )
    return Measurement(figures={"runs": runs}, show=show, title=title)


@measured("train --preset small --threads 1 --rounds 9 --compile", extra=DESKTOP)
def train(
    preset: Annotated[str, Option(help="Model size: small, log or published.")] = "small",
    puzzle: Annotated[str, Option(help="Kind of the generated training rows.")] = "sudoku",
    batch: Annotated[int, Option(min=1, help="Rows of one update.")] = 32,
    threads: Annotated[
        int | None, Option(min=1, help="Threads of each trainer; else all cores.")
    ] = None,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 1.0,
    compiled: Annotated[
        bool, Option("--compile", help="Also our trainer with torch.compile.")
    ] = False,
    cpu_clock: CpuClock = False,
) -> Measurement:
    """Train by the published step, written plainly, and by our trainer; in turns, equal losses."""
    from hrm_benchmarks.desktop import training

    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    with TemporaryDirectory() as folder:
        trainers = training.contestants(
            preset, puzzle, Path(folder) / "data", batch_size=batch, num_threads=threads
        )
        if compiled:
            trainers += training.compiled(trainers)
        runs = training.measure(trainers, turns)
    num_threads = trainers[0].num_threads
    title = f"{preset}, {puzzle}, batch {batch}, {num_threads} threads, {turns.title}"
    show = partial(
        print_table, title, training.COLUMNS, runs, caption=training.LEGEND, left=["trainer"]
    )
    machine = {"torch": training.torch.__version__}
    return Measurement(figures={"machine": machine, "runs": runs}, show=show, title=title)


@measured("compare --cpu-s 25 --seed 0 --seed 1 --out compare", extra=DESKTOP)
def compare(
    puzzle: Annotated[
        list[str] | None,
        Option(help="May be repeated. [sudoku-4x4, sudoku-6x6, logistics-6x6]"),
    ] = None,
    seed: Annotated[
        list[int] | None,
        Option(min=0, help="Seed of weights and rows, may be repeated. [0, 1]"),
    ] = None,
    cpu_s: Annotated[float, Option(min=0, help="CPU seconds of each training.")] = 25.0,
    parameters: Annotated[
        int, Option(min=1, help="Approximate parameters of each model.")
    ] = 150_000,
    puzzles: Annotated[
        tuple[int, int], Option(help="Training and held-out puzzles of each kind.")
    ] = (2000, 200),
    out: Annotated[Path, Option(help="Folder of the table (.json and .md) and a picture.")] = Path(
        "compare"
    ),
) -> Measurement:
    """Train HRM, TRM, a transformer and relational blocks on the same puzzles and CPU time."""
    from hrm_benchmarks.desktop import compare

    num_train, num_test = puzzles
    contest = compare.Contest(
        seeds=seed or SEEDS,
        cpu_s=cpu_s,
        num_parameters=parameters,
        num_train=num_train,
        num_test=num_test,
    )
    runs: list[Row] = []
    for row in contest.rows(puzzle or COMPARED):
        runs.append(row)
        compare.save(out, runs)  # after each row, so that a long run leaves what it has
        tell(f"{row['puzzle']}, {row['arch']}: {row['exact']} % exact")
    title = f"{cpu_s:g} CPU s each, {num_train} puzzles, {num_test} held out; written: {out}"
    show = partial(print_table, title, compare.COLUMNS, runs, caption=compare.LEGEND)
    return Measurement(figures={"runs": runs}, show=show, title=title)


@measured(
    "accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
    groups={"Puzzles": "questions puzzles difficulty seed", "Engine": "engine slots threads"},
)
def accuracy(
    bundle: Annotated[
        list[str] | None,
        Option(help="Bundle directory or shipped name, may be repeated; else the default."),
    ] = None,
    questions: Annotated[
        Path | None,
        Option(help="One per line, CSV in the published form, or NDJSON; else generated."),
    ] = None,
    difficulty: Hardest = None,
    puzzles: Annotated[
        int, Option(min=1, help="The first puzzles of the file, or generated ones.")
    ] = 100,
    seed: Seed = 0,
    attempts: Annotated[
        list[int] | None,
        Option(min=1, max=1024, help="Attempts per puzzle, may be repeated. [1, 4, 16, 64]"),
    ] = None,
    max_segments: Annotated[
        int | None, Option(min=1, help="Segments of an attempt; else the model's limit.")
    ] = None,
    how: Annotated[str | None, Option(help="plain or hypotheses, as in hrm-solve.")] = None,
    engine: EngineOption = "auto",
    slots: Annotated[int, Option(min=1, help="Attempts in one batch.")] = 16,
    threads: Threads = 1,
) -> Measurement:
    """Solve the same puzzles with each model, and count the CPU time to a proven answer."""
    from hrm_benchmarks import accuracy

    models = [_open(name) for name in bundle or [None]]
    puzzle = accuracy.provable(models)
    if questions is not None:
        known = accuracy.puzzles_from_file(questions, puzzle, puzzles)
    else:
        hardest = puzzle.difficulties[-1]
        known = accuracy.generated(puzzle, difficulty or hardest, puzzles, seed)
    limits = {"max_segments": max_segments, "how": how}
    levels: list[Row] = []
    for model in models:
        for num_attempts in attempts or ATTEMPTS:
            row = accuracy.measured(
                model,
                known,
                num_attempts,
                engine=engine,
                num_slots=slots,
                num_threads=threads,
                limits=limits,
            )
            levels.append(row)
            tell(accuracy.PROGRESS.format(**row))
    at_most = f"up to {max_segments or 'all'} segments"
    title = f"{puzzle.name}, {len(known)} puzzles, {at_most}, {engine}, {threads} threads"
    show = partial(
        print_table, title, accuracy.COLUMNS, levels, caption=accuracy.LEGEND, left=["model"]
    )
    return Measurement(figures={"levels": levels}, show=show, title=title)


@measured("soak --requests 1000000 --json > soak.json")
def soak(
    requests: Annotated[
        int, Option(min=1, help="Requests; half of them are lines of batches.")
    ] = 100_000,
    streams: Annotated[int, Option(min=1, help="Connections that send batches.")] = 4,
    singles: Annotated[
        int, Option(min=1, help="Connections that send one puzzle after another.")
    ] = 16,
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
    minutes: Annotated[float, Option(min=0.05, help="Duration.")] = 10.0,
    every_s: Annotated[float, Option(min=0.1, help="Seconds between two troubles.")] = 3.0,
    puzzles: Puzzles = 200,
    seed: Seed = 0,
    attack: Annotated[
        str | None,
        Option(help="Measure /livez beside this attack alone; all: one after another."),
    ] = None,
    senders: Annotated[int, Option(min=1, help="Senders of the attack.")] = 8,
) -> Measurement:
    """Kill, stop, reload and flood a server while others send puzzles and check the answers."""
    from hrm_benchmarks import chaos

    opened = _open(bundle)
    seconds = 60 * minutes
    if attack is None:
        questions = _questions(opened, None, None, puzzles, seed)
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
    connections: Annotated[int, Option(min=1, help="Connections for the ceiling of /solve.")] = 32,
    seconds: Annotated[float, Option(min=1, help="Duration of each measurement.")] = 10.0,
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
        opened = _open(bundle)
        questions = _questions(opened, csv, difficulty, puzzles, seed)
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
    show = partial(
        print_table, target.title, throughput.COLUMNS, passages, caption=throughput.LEGEND
    )
    return Measurement(figures={"passages": passages}, show=show, title=target.title)


@measured("start --server 'sudoku-6x6 --engine cpu:int8' --rounds 5")
def start(
    server: Annotated[
        list[str] | None,
        Option(help="Arguments of hrm-serve, may be repeated; else the promised two."),
    ] = None,
    rounds: Annotated[
        int, Option(min=1, help="Starts of each, after one that does not count.")
    ] = 3,
) -> Measurement:
    """Time hrm-serve until it is ready, and measure the memory of both processes."""
    from hrm_benchmarks import start

    starts: list[Row] = []
    for arguments in server or PROMISED_STARTS:
        starts.append(start.measure(shlex.split(arguments), rounds=rounds))
    show = partial(print_table, "", start.COLUMNS, starts, left=["hrm-serve"])
    return Measurement(figures={"starts": starts}, show=show)
