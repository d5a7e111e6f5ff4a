"""The subcommands of `hrm-bench` that run engines: serve, segment, accuracy, peers.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import asyncio
import itertools
from pathlib import Path
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
    chosen,
    measured,
    opened_bundle,
)
from hrm_benchmarks.report import Rounds, Row, Table, tell
from hrm_edge_runtime.contract.halting import PolicyKind

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_puzzles.data.sources import Questions

ATTEMPTS = (1, 4, 16, 64)
BATCHES = (1, 8)


@measured(
    "serve --bundle model.bundle --csv test.csv --slots 4; hrm-bench serve --http",
    groups={
        "Puzzles": "csv difficulty puzzles seed",
        "Policies": "policy cpu_clock rounds",
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
    policy: Annotated[
        PolicyKind | None, Option(help="Halting policy. Default: the bundle's.")
    ] = None,
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
    from hrm_benchmarks.server import running, serve_command

    opened = opened_bundle(bundle)
    questions = _questions(opened, csv, difficulty, puzzles, seed)
    if http:
        options = [f"--engine={engine}", f"--slots={slots}", f"--threads={threads}"]
        bodies = load.bodies_of(opened.puzzle, questions)
        with running(serve_command(str(opened.path), *options)) as server:
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
        kind=policy,
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


@measured("segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleOption = None,
    engine: Annotated[
        list[str] | None,
        Option(help="ENGINE[:PRECISION]; may be repeated. Default: cpu in every precision."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        Option(help="Also time PyTorch, eager and compiled, with this checkpoint."),
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
    rows = segments.measure(
        opened, engines, batch or BATCHES, turns, num_threads=threads, checkpoint=checkpoint
    )
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
        for model, num_attempts in itertools.product(models, attempts or ATTEMPTS):
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
    server: Annotated[
        list[str] | None, Option(help="Peer to measure; may be repeated. Default: all.")
    ] = None,
    load: Annotated[
        list[str] | None, Option(help="Load to send; may be repeated. Default: all.")
    ] = None,
    puzzles: Puzzles = 150,
    connections: Connections = 16,
    rate: Annotated[float, Option(min=0.1, help="Puzzles per second of the open loop.")] = 20.0,
    rounds: TurnRounds = 3,
    seed: Seed = 0,
) -> Table:
    """Serve the same graph with LitServe, Ray Serve, BentoML and FastAPI, beside hrm-serve."""
    from hrm_benchmarks import peers

    names = chosen(load, peers.LOADS, "load")
    contest = peers.Contest(
        loads=[peers.PuzzleLoad.named(name, puzzles, seed) for name in names],
        python=python,
        connections=connections,
        rate=rate,
        seed=seed,
    )
    rows = contest.rows(chosen(server, peers.SERVERS, "peer"), rounds)
    sizes = f"{puzzles} puzzles, {connections} connections, {rate:g} arrivals a second"
    title = f"{sizes}, {rounds} rounds"
    return Table(title=title, columns=peers.COLUMNS, rows=rows, legend=peers.LEGEND)
