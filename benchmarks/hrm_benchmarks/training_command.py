"""The subcommand `hrm-bench train`: speed beside the published step, families, and data sizes.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import BadParameter, Option

from hrm_benchmarks.command import CpuClock, Seed, TurnRounds, TurnS, measured
from hrm_benchmarks.report import Rounds, Row, Table, tell

COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")


@measured(
    "train --threads 1 --compile; hrm-bench train --compare; hrm-bench train --scaling",
    extra="train,serve,bench",
    groups={
        "Speed": "batch threads rounds turn_s compiled cpu_clock",
        "Comparison and scaling": "compare scaling data samples cpu_s parameters puzzles seed",
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
    parameters: Annotated[
        int, Option(min=1, help="Approximate parameters of each compared model.")
    ] = 150_000,
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
        raise BadParameter("--compare and --scaling are two measurements: use one of them.")
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
                puzzle or COMPARED, Path(folder), sizes, parameters, cpu_s=cpu_s, seed=seed
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
