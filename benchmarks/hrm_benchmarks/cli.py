"""The subcommands of `hrm-bench`. Imports at the top must not load ONNX Runtime or PyTorch."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hrm_benchmarks.command import (
    AccuracyOptions,
    PeerOptions,
    SegmentOptions,
    ServingOptions,
    TrainingOptions,
    app,
    measured,
    questions_of,
    texts_of,
)
from hrm_benchmarks.report import Row, Table, tell
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_host.reading import counted

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_puzzles.data.sources import Questions


@app.callback()
def bench() -> None:
    """Measure serving and training against baselines."""


@measured(
    ServingOptions,
    "serve --bundle model.bundle --csv test.csv --slots 4; hrm-bench serve --http",
    groups={
        "Puzzles": "csv difficulty puzzles seed",
        "Policies": "cpu_clock rounds",
        "HTTP": "http seconds connections",
    },
)
def serve(options: ServingOptions) -> Table:
    """Serve the same puzzles by five policies: refill, fixed, slowest, compaction, one at a time.

    With --http, measure what hrm-serve itself takes.
    """
    opened = open_bundle(options.bundle)
    questions = _questions(opened, options)
    if options.http:
        return _served_through_http(opened, questions, options)
    from hrm_benchmarks import policies

    made = policies.bundle_bench(opened, questions, options)
    rows = policies.measure(made, rounds=options.rounds)
    made.engine.close()
    return Table(made.title, policies.COLUMNS, rows, policies.LEGEND)


def _served_through_http(
    bundle: "Bundle", questions: "Questions", options: ServingOptions
) -> Table:
    from hrm_benchmarks import load

    engine = (f"--engine={options.engine}", f"--slots={options.slots}")
    arguments = (*engine, f"--threads={options.threads}")
    texts = texts_of(bundle.puzzle, questions)
    with load.running(load.serve_command(str(bundle.path), *arguments)) as server:
        rows = asyncio.run(load.measured(server, texts, options))
    title = f"{bundle.manifest.name}, {' '.join(arguments)}, {questions.title}"
    return Table(title, load.COLUMNS, rows, load.LEGEND)


def _questions(bundle: "Bundle", options: ServingOptions) -> "Questions":
    """Return the puzzles of a file, or generated ones; by default the easiest."""
    puzzle = bundle.puzzle
    easiest = next(iter(puzzle.difficulties), "")  # empty if they cannot be generated
    difficulty = options.difficulty or easiest
    return questions_of(puzzle, options.csv, difficulty, count=options.puzzles, seed=options.seed)


@measured(SegmentOptions, "segment --bundle sudoku --batch 1 --batch 8")
def segment(options: SegmentOptions) -> Table:
    """Time one segment on every engine in turns, beside a large matrix product."""
    from hrm_benchmarks import segments

    opened = open_bundle(options.bundle)
    rows = segments.measure(opened, options)
    title = f"{opened.manifest.name}, {counted(options.threads, 'thread')}, {options.title}"
    return Table(title, segments.COLUMNS, rows, segments.LEGEND)


@measured(
    AccuracyOptions,
    "accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
    groups={"Puzzles": "questions board puzzles difficulty seed", "Engine": "engine slots threads"},
)
def accuracy(options: AccuracyOptions) -> Table:
    """Solve the same puzzles with each model, and count the CPU time to a proven answer."""
    from hrm_benchmarks import accuracy

    models = [open_bundle(name) for name in options.bundle or [None]]
    puzzle = accuracy.provable(models)
    rows = _told(accuracy.rows_of(models, puzzle, options), accuracy.PROGRESS)
    at_most = f"up to {options.max_segments or 'all'} segments"
    engine = f"{options.engine}, {counted(options.threads, 'thread')}"
    title = f"{puzzle.name}, {counted(options.puzzles, 'puzzle')}, {at_most}, {engine}"
    return Table(title, accuracy.COLUMNS, rows, accuracy.LEGEND)


def _told(measuring: Iterable[Row], form: str) -> list[Row]:
    """Return all rows; tell each as soon as it is measured."""
    rows: list[Row] = []
    for row in measuring:
        rows.append(row)
        tell(form.format(**row))
    return rows


@measured(PeerOptions, "peers --python .peers/bin/python > peers.md")
def peers(options: PeerOptions) -> Table:
    """Serve the same graph with LitServe and FastAPI, beside hrm-serve."""
    from hrm_benchmarks import peers

    num_puzzles = options.puzzles
    loads = [peers.PuzzleLoad.named(name, num_puzzles, options.seed) for name in peers.LOADS]
    rows = peers.rows_of(loads, peers.SERVERS, options)
    sizes = f"{counted(num_puzzles, 'puzzle')}, {counted(options.connections, 'connection')}"
    title = f"{sizes}, {options.rate:g} arrivals a second, {options.rounds} rounds"
    return Table(title, peers.COLUMNS, rows, peers.LEGEND)


@measured(
    TrainingOptions,
    "train --threads 1 --compile; hrm-bench train --compare; hrm-bench train --scaling",
    extra="train,serve,bench",
    groups={
        "Speed": "batch threads rounds turn_s compiled cpu_clock",
        "Comparison and scaling": "compare scaling samples cpu_s puzzles seed",
    },
)
def train(options: TrainingOptions) -> Table:
    """Compare the speed of our trainer with the published training step.

    With --compare or --scaling, compare what equal CPU time or equal samples reach.
    """
    if options.compare and options.scaling:
        raise ValueError("--compare and --scaling are two measurements; use one of them")
    with TemporaryDirectory() as folder:
        if options.compare or options.scaling:
            return _reached(options, Path(folder))
        return _speed(options, Path(folder))


TRAINED = "{puzzle}, {model}, {puzzles} puzzles: {exact:.1f} % exact"


def _reached(options: TrainingOptions, folder: Path) -> Table:
    """Compare what trainings reach, of families of models or on parts of the data."""
    from hrm_benchmarks.desktop import contest

    if options.compare:
        sizes = options.puzzles or (2000, 200)
        trainings = contest.families(options, sizes, folder)
        title = f"{options.cpu_s:g} CPU s each, {sizes} puzzles, seed {options.seed}"
    else:
        (name,) = options.puzzle or ("sudoku-6x6",)
        sizes = options.puzzles or (32, 200)
        preset = options.preset or "relational"
        trainings = contest.parts(name, sizes, folder, preset, options.samples, seed=options.seed)
        title = f"{name}, {options.samples:,} samples each, seed {options.seed}"
    rows = _told(trainings, TRAINED)
    return Table(title, contest.COLUMNS, rows, contest.LEGEND)


def _speed(options: TrainingOptions, folder: Path) -> Table:
    from hrm_benchmarks.desktop import training

    trainers = training.contestants(options, folder)
    rows = training.measure(trainers, options)
    first = trainers[0]
    model = f"{options.preset or 'small'}, {first.recipe.puzzle}"
    sizes = f"batch {options.batch}, {counted(first.num_threads, 'thread')}"
    title = f"{model}, {sizes}, {options.title}"
    return Table(title, training.COLUMNS, rows, training.LEGEND)
