"""The subcommands of `hrm-bench` that train: train, published, compare, scaling.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from hrm_benchmarks.command import (
    CpuClock,
    Measurement,
    Puzzles,
    Seed,
    TurnRounds,
    TurnS,
    chosen,
    in_table,
    measured,
    opened_bundle,
)
from hrm_benchmarks.report import Rounds, Row, tell
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build

DESKTOP = "train,serve,bench"  # extras that training needs
SEEDS = (0, 1)
COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")


@measured("train --preset small --threads 1 --rounds 9 --compile", extra=DESKTOP)
def train(
    preset: Annotated[str, Option(help="Model size: small, log or published.")] = "small",
    puzzle: Annotated[str, Option(help="Puzzle of the training rows.")] = "sudoku",
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
) -> Measurement:
    """Compare the speed of our trainer with the published training step."""
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
    return in_table(
        "runs",
        runs,
        training.COLUMNS,
        title=title,
        caption=training.LEGEND,
        left=["trainer"],
        machine={"torch": training.torch.__version__},
    )


@measured("published --rounds 5 --compile", extra=f"export,{DESKTOP}")
def published(
    model: Annotated[
        list[str] | None, Option(help="Model of the segments; may be repeated. Default: all.")
    ] = None,
    checkpoint: Annotated[
        Path, Option(help="Checkpoint of the model that runs in the loops.")
    ] = Path("model/checkpoints/sudoku-6x6"),
    bundle: Annotated[str, Option(help="Bundle of that checkpoint.")] = "sudoku-6x6",
    puzzles: Puzzles = 64,
    rounds: TurnRounds = 5,
    turn_s: TurnS = 1.0,
    compiled: Annotated[
        bool, Option("--compile", help="Also time torch.compile, which needs a C++ compiler.")
    ] = False,
) -> Measurement:
    """Compare our engine with the published step and evaluation loop, by CPU time."""
    from hrm_benchmarks.desktop import published

    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=True)
    runs: list[Row] = []
    for name in chosen(model, published.MODELS, "model"):
        runs += published.segments(name, turns, compiled=compiled)
    runs += published.loops(opened_bundle(bundle), checkpoint, puzzles, turns)
    return in_table(
        "runs",
        runs,
        published.COLUMNS,
        title=f"one thread, batch 1, loops over {puzzles} puzzles, {turns.title}",
        caption=published.LEGEND,
        left=["model", "runs", "note"],
        machine={"torch": published.torch.__version__},
    )


@measured("compare --cpu-s 25 --seed 0 --seed 1 --out compare", extra=DESKTOP)
def compare(
    puzzle: Annotated[
        list[str] | None,
        Option(help="Puzzle; may be repeated. Default: sudoku-4x4, sudoku-6x6 and logistics-6x6."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        Option(min=0, help="Random seed; may be repeated. Default: 0 and 1."),
    ] = None,
    cpu_s: Annotated[float, Option(min=0, help="CPU seconds per training.")] = 25.0,
    parameters: Annotated[
        int, Option(min=1, help="Approximate parameters of each model.")
    ] = 150_000,
    puzzles: Annotated[
        tuple[int, int], Option(help="Number of training and of held-out puzzles per kind.")
    ] = (2000, 200),
    out: Annotated[
        Path, Option(help="Output folder for the table (.json, .md) and a picture.")
    ] = Path("compare"),
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
        compare.save(out, runs)  # after each row, so an interrupted run keeps its rows
        tell(f"{row['puzzle']}, {row['arch']}: {row['exact']} % exact")
    title = f"{cpu_s:g} CPU s each, {num_train} puzzles, {num_test} held out; written: {out}"
    return in_table("runs", runs, compare.COLUMNS, title=title, caption=compare.LEGEND)


@measured("scaling --puzzle sudoku-6x6 --out scaling", extra=DESKTOP)
def scaling(
    puzzle: Annotated[str, Option(help="Puzzle of the data set.")] = "sudoku-6x6",
    data: Annotated[
        Path | None, Option(help="Data set directory. Default: generated puzzles.")
    ] = None,
    preset: Annotated[str, Option(help="Model size: relational, small, log...")] = "relational",
    samples: Annotated[int, Option(min=1, help="Samples of each training.")] = 24_000,
    puzzles: Annotated[
        tuple[int, int], Option(help="Number of puzzles to generate for training and testing.")
    ] = (32, 200),
    symmetries: Annotated[
        bool, Option(help="Draw a symmetric variant of a puzzle each time.")
    ] = True,
    seed: Seed = 0,
    out: Annotated[
        Path, Option(help="Output folder for the table (.json, .md) and the curve.")
    ] = Path("scaling"),
) -> Measurement:
    """Train on 1/8, 1/4, 1/2 and all of the data, with equal samples, and draw one curve."""
    from hrm_benchmarks.desktop import scaling

    kind = registry.get(puzzle)
    variants = "with" if symmetries else "without"
    title = f"{puzzle}, {preset}, {samples:,} samples each, {variants} symmetries, seed {seed}"
    runs: list[Row] = []
    with TemporaryDirectory() as folder:
        if data is None:
            data = Path(folder) / puzzle
            num_train, num_test = puzzles
            build(DataRecipe(puzzle=puzzle, num_train=num_train, num_test=num_test), data)
        contest = scaling.Scaling(
            puzzle=kind,
            data=data,
            preset=preset,
            num_samples=samples,
            symmetries=symmetries,
            seed=seed,
        )
        for row in contest.rows():
            runs.append(row)
            scaling.save(out, title, runs)  # after each row, so an interrupted run keeps its rows
            tell(f"{row['puzzles']} puzzles: {row['exact']:.1f} % exact")
    return in_table("runs", runs, scaling.COLUMNS, title=title, caption=scaling.LEGEND)
