"""The subcommands of `hrm-bench`. Imports at the top must not load ONNX Runtime or PyTorch."""

import asyncio
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hrm_benchmarks.command import (
    BundleOption,
    Connections,
    CpuClock,
    EngineOption,
    Puzzles,
    Seed,
    Threads,
    TurnRounds,
    TurnS,
    app,
    measured,
    opened_bundle,
)
from hrm_benchmarks.report import Rounds, Row, Table, tell

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_puzzles.data.sources import Questions

COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")


@app.callback()
def bench() -> None:
    """Measure serving and training against baselines."""


@measured(
    "serve --bundle model.bundle --csv test.csv --slots 4; hrm-bench serve --http",
    groups={
        "Puzzles": "csv difficulty puzzles seed",
        "Policies": "cpu_clock rounds",
        "HTTP": "http seconds connections",
    },
)
def serve(
    bundle: BundleOption = None,
    engine: EngineOption = "auto",
    slots: Annotated[int, Option(min=1, help="Number of slots: the batch size.")] = 8,
    threads: Threads = 1,
    csv: Annotated[
        Path | None,
        Option(help="CSV file in the Sudoku-Extreme format. Default: generated puzzles."),
    ] = None,
    difficulty: Annotated[
        str | None, Option(help="Difficulty of generated puzzles. Default: the easiest.")
    ] = None,
    puzzles: Puzzles = 200,
    seed: Seed = 0,
    cpu_clock: CpuClock = False,
    rounds: Annotated[int, Option(min=1, help="Rounds; figures are medians.")] = 1,
    http: Annotated[
        bool, Option("--http", help="Send the puzzles to hrm-serve through HTTP instead.")
    ] = False,
    seconds: Annotated[float, Option(min=1, help="Seconds per load.")] = 10.0,
    connections: Connections = 32,
) -> Table:
    """Serve the same puzzles by five policies: refill, fixed, slowest, compaction, one at a time.

    With --http, measure what hrm-serve itself takes.
    """
    from hrm_benchmarks import load, policies

    opened = opened_bundle(bundle)
    questions = _questions(opened, csv, difficulty, puzzles, seed)
    if http:
        options = [f"--engine={engine}", f"--slots={slots}", f"--threads={threads}"]
        bodies = load.bodies_of(opened.puzzle, questions)
        with load.running(load.serve_command(str(opened.path), *options)) as server:
            measuring = load.measured(
                server, bodies, connections=connections, seconds=seconds, seed=seed
            )
            rows = asyncio.run(measuring)
        title = f"{opened.manifest.name}, {' '.join(options)}, {questions.title}"
        return Table(title=title, columns=load.COLUMNS, rows=rows, legend=load.LEGEND)
    made = policies.bundle_bench(
        opened,
        questions,
        engine=engine,
        num_slots=slots,
        num_threads=threads,
        cpu_clock=cpu_clock,
    )
    rows = policies.measure(made, rounds=rounds)
    made.engine.close()
    return Table(title=made.title, columns=policies.COLUMNS, rows=rows, legend=policies.LEGEND)


def _questions(
    bundle: "Bundle", csv: Path | None, difficulty: str | None, num_puzzles: int, seed: int
) -> "Questions":
    """Return the puzzles of a file, or generated ones; by default the easiest."""
    from hrm_puzzles.data.sources import questions_from_file, questions_made

    if csv is not None:
        return questions_from_file(csv, bundle.puzzle).sample(num_puzzles, seed)
    easiest = next(iter(bundle.puzzle.difficulties), "")  # empty if they cannot be generated
    return questions_made(bundle.puzzle, num_puzzles, difficulty=difficulty or easiest, seed=seed)


@measured("segment --bundle sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleOption = None,
    engine: Annotated[
        list[str] | None,
        Option(help="ENGINE[:PRECISION]; may be repeated. Default: cpu in every precision."),
    ] = None,
    batch: Annotated[
        list[int] | None, Option(min=1, help="Batch size; may be repeated. Default: 1 and 8.")
    ] = None,
    threads: Threads = 1,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 0.5,
    cpu_clock: CpuClock = False,
) -> Table:
    """Time one segment on every engine in turns, beside a large matrix product."""
    from hrm_benchmarks import segments

    opened = opened_bundle(bundle)
    manifest = opened.manifest
    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    engines = engine or [f"cpu:{precision}" for precision in manifest.precisions]
    rows = segments.measure(opened, engines, batch or (1, 8), turns, num_threads=threads)
    title = f"{manifest.name}, {threads} threads, {turns.title}"
    return Table(title=title, columns=segments.COLUMNS, rows=rows, legend=segments.LEGEND)


@measured(
    "accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
    groups={"Puzzles": "questions board puzzles difficulty seed", "Engine": "engine slots threads"},
)
def accuracy(
    bundle: Annotated[
        list[str] | None,
        Option(help="Bundle directory or shipped name; may be repeated. Default: sudoku."),
    ] = None,
    questions: Annotated[
        Path | None,
        Option(
            help="Puzzle file: one per line, published CSV, or NDJSON. Default: generated puzzles."
        ),
    ] = None,
    board: Annotated[
        list[str] | None,
        Option(help="Board of the generated puzzles, such as 12x20; may be repeated."),
    ] = None,
    difficulty: Annotated[
        str | None, Option(help="Difficulty of generated puzzles. Default: the hardest.")
    ] = None,
    puzzles: Puzzles = 100,
    seed: Seed = 0,
    attempts: Annotated[
        list[int] | None,
        Option(
            min=1,
            max=1024,
            help="Attempts per puzzle; may be repeated. Default: 1, 4, 16 and 64.",
        ),
    ] = None,
    max_segments: Annotated[
        int | None,
        Option(min=1, help="Maximum number of segments per attempt. Default: the model's."),
    ] = None,
    how: Annotated[str | None, Option(help="Method of every attempt: plain or hypotheses.")] = None,
    engine: EngineOption = "auto",
    slots: Annotated[int, Option(min=1, help="Attempts per batch.")] = 16,
    threads: Threads = 1,
) -> Table:
    """Solve the same puzzles with each model, and count the CPU time to a proven answer."""
    from hrm_benchmarks import accuracy

    models = [opened_bundle(name) for name in bundle or [None]]
    puzzle = accuracy.provable(models)
    limits = {"max_segments": max_segments, "how": how}
    rows: list[Row] = []
    for size in board or [None]:
        sized = accuracy.on_board(puzzle, size)
        if questions is not None:
            known = accuracy.puzzles_from_file(questions, sized, puzzles)
        else:
            hardest = sized.difficulties[-1]
            known = accuracy.generated(sized, difficulty or hardest, puzzles, seed)
        for model, num_attempts in itertools.product(models, attempts or (1, 4, 16, 64)):
            row = accuracy.measured(
                model,
                sized,
                known,
                num_attempts,
                engine=engine,
                num_slots=slots,
                num_threads=threads,
                limits=limits,
            )
            rows.append(row)
            tell(accuracy.PROGRESS.format(**row))
    at_most = f"up to {max_segments or 'all'} segments"
    title = f"{puzzle.name}, {puzzles} puzzles, {at_most}, {engine}, {threads} threads"
    return Table(title=title, columns=accuracy.COLUMNS, rows=rows, legend=accuracy.LEGEND)


@measured("peers --python .peers/bin/python > peers.md")
def peers(
    python: Annotated[
        Path, Option(help="Python of an environment with benchmarks/peers/requirements.txt.")
    ] = Path(".peers/bin/python"),
    puzzles: Puzzles = 150,
    connections: Connections = 16,
    rate: Annotated[float, Option(min=0.1, help="Puzzles per second of the open loop.")] = 20.0,
    rounds: TurnRounds = 3,
    seed: Seed = 0,
) -> Table:
    """Serve the same graph with LitServe, Ray Serve, BentoML and FastAPI, beside hrm-serve."""
    from hrm_benchmarks import peers

    contest = peers.Contest(
        loads=[peers.PuzzleLoad.named(name, puzzles, seed) for name in peers.LOADS],
        python=python,
        connections=connections,
        rate=rate,
        seed=seed,
    )
    rows = contest.rows(peers.SERVERS, rounds)
    sizes = f"{puzzles} puzzles, {connections} connections, {rate:g} arrivals a second"
    title = f"{sizes}, {rounds} rounds"
    return Table(title=title, columns=peers.COLUMNS, rows=rows, legend=peers.LEGEND)


@measured(
    "train --threads 1 --compile; hrm-bench train --compare; hrm-bench train --scaling",
    extra="train,serve,bench",
    groups={
        "Speed": "batch threads rounds turn_s compiled cpu_clock",
        "Comparison and scaling": "compare scaling data samples cpu_s puzzles seed",
    },
)
def train(
    puzzle: Annotated[
        list[str] | None,
        Option(
            help="Puzzle; may be repeated with --compare. Default: sudoku; with --scaling "
            "sudoku-6x6; with --compare also sudoku-4x4 and logistics-6x6."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(help="Model size: small, log, published... Default: small; scaling: relational."),
    ] = None,
    batch: Annotated[int, Option(min=1, help="Rows per update.")] = 32,
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads per trainer. Default: all cores.")
    ] = None,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 1.0,
    compiled: Annotated[
        bool, Option("--compile", help="Also time our trainer with torch.compile.")
    ] = False,
    cpu_clock: CpuClock = False,
    compare: Annotated[
        bool,
        Option("--compare", help="Train HRM, TRM, a transformer and relational blocks instead."),
    ] = False,
    scaling: Annotated[
        bool, Option("--scaling", help="Train on 1/8, 1/4, 1/2 and all of the data instead.")
    ] = False,
    data: Annotated[
        Path | None, Option(help="Data set directory to scale. Default: generated puzzles.")
    ] = None,
    samples: Annotated[int, Option(min=1, help="Samples of each training to scale.")] = 24_000,
    cpu_s: Annotated[float, Option(min=0, help="CPU seconds per compared training.")] = 25.0,
    puzzles: Annotated[
        tuple[int, int] | None,
        Option(help="Numbers of training and held-out puzzles. Default: 2000 200; scaling 32 200."),
    ] = None,
    seed: Seed = 0,
) -> Table:
    """Compare the speed of our trainer with the published training step.

    With --compare or --scaling, compare what equal CPU time or equal samples reach.
    """
    if compare and scaling:
        raise ValueError("--compare and --scaling are two measurements; use one of them")
    if not compare and not scaling:
        (name,) = puzzle or ("sudoku",)
        turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
        return _speed(preset or "small", name, batch, threads, turns, with_compiled=compiled)
    from hrm_benchmarks.desktop import contest

    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        if compare:
            sizes = puzzles or (2000, 200)
            title = f"{cpu_s:g} CPU s each, {sizes} puzzles, seed {seed}"
            trainings = contest.families(
                puzzle or COMPARED, Path(folder), sizes, cpu_s=cpu_s, seed=seed
            )
        else:
            (name,) = puzzle or ("sudoku-6x6",)
            source = data or contest.built(name, Path(folder), puzzles or (32, 200))
            title = f"{name}, {samples:,} samples each, seed {seed}"
            trainings = contest.parts(name, source, preset or "relational", samples, seed=seed)
        for row in trainings:
            rows.append(row)
            tell("{puzzle}, {model}, {puzzles} puzzles: {exact:.1f} % exact".format(**row))
    return Table(title=title, columns=contest.COLUMNS, rows=rows, legend=contest.LEGEND)


def _speed(
    preset: str,
    puzzle: str,
    batch: int,
    threads: int | None,
    turns: Rounds,
    *,
    with_compiled: bool,
) -> Table:
    from hrm_benchmarks.desktop import training

    with TemporaryDirectory() as folder:
        trainers = training.contestants(
            preset, puzzle, Path(folder) / "data", batch_size=batch, num_threads=threads
        )
        if with_compiled:
            trainers += training.compiled(trainers)
        rows = training.measure(trainers, turns)
    num_threads = trainers[0].num_threads
    title = f"{preset}, {puzzle}, batch {batch}, {num_threads} threads, {turns.title}"
    return Table(title=title, columns=training.COLUMNS, rows=rows, legend=training.LEGEND)
