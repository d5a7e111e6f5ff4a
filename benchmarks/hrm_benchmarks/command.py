"""The options of `hrm-bench`, and the frame of its commands.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from hrm_benchmarks.report import (
    CpuClock,
    Table,
    TurnOptions,
    TurnRounds,
    TurnS,
    leaving_at_sigterm,
)
from hrm_host.command import AsJson, Command, taking

if TYPE_CHECKING:
    from hrm_puzzles.data.sources import Questions
    from hrm_puzzles.puzzle import Puzzle

app = Command("hrm-bench", extra="serve,bench", no_args_is_help=True)

BundleOption = Annotated[
    str | None,
    Option(help="Bundle directory or shipped name. Default: sudoku."),
]
EngineOption = Annotated[str, Option(metavar="ENGINE[:PRECISION]", help="Engine, as in hrm-serve.")]
Puzzles = Annotated[int, Option(min=1, help="Number of different puzzles.")]
Connections = Annotated[int, Option(min=1, help="Connections that send single puzzles.")]
Threads = Annotated[int, Option(min=1, help="CPU threads of the engine.")]
Seed = Annotated[int, Option(min=0, help="Random seed.")]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What every command takes."""

    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class ServingOptions(BenchOptions):
    bundle: BundleOption = None
    engine: EngineOption = "auto"
    slots: Annotated[int, Option(min=1, help="Number of slots: the batch size.")] = 8
    threads: Threads = 1
    csv: Annotated[
        Path | None,
        Option(help="CSV file in the Sudoku-Extreme format. Default: generated puzzles."),
    ] = None
    difficulty: Annotated[
        str | None, Option(help="Difficulty of generated puzzles. Default: the easiest.")
    ] = None
    puzzles: Puzzles = 200
    seed: Seed = 0
    rounds: TurnRounds = 1
    cpu_clock: CpuClock = False
    http: Annotated[
        bool, Option("--http", help="Send the puzzles to hrm-serve through HTTP instead.")
    ] = False
    seconds: Annotated[float, Option(min=1, help="Seconds per load.")] = 10.0
    connections: Connections = 32


@dataclass(frozen=True, kw_only=True)
class SegmentOptions(BenchOptions, TurnOptions):
    turn_s: TurnS = 0.5
    bundle: BundleOption = None
    engine: Annotated[
        list[str] | None,
        Option(help="ENGINE[:PRECISION]; may be repeated. Default: cpu in every precision."),
    ] = None
    batch: Annotated[
        list[int] | None, Option(min=1, help="Batch size; may be repeated. Default: 1 and 8.")
    ] = None
    threads: Threads = 1


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(BenchOptions):
    bundle: Annotated[
        list[str] | None,
        Option(help="Bundle directory or shipped name; may be repeated. Default: sudoku."),
    ] = None
    questions: Annotated[
        Path | None,
        Option(
            help="Puzzle file: one per line, published CSV, or NDJSON. Default: generated puzzles."
        ),
    ] = None
    board: Annotated[
        list[str] | None,
        Option(help="Board of the generated puzzles, such as 12x20; may be repeated."),
    ] = None
    difficulty: Annotated[
        str | None, Option(help="Difficulty of generated puzzles. Default: the hardest.")
    ] = None
    puzzles: Puzzles = 100
    seed: Seed = 0
    attempts: Annotated[
        list[int] | None,
        Option(
            min=1, max=1024, help="Attempts per puzzle; may be repeated. Default: 1, 4, 16 and 64."
        ),
    ] = None
    max_segments: Annotated[
        int | None,
        Option(min=1, help="Maximum number of segments per attempt. Default: the model's."),
    ] = None
    how: Annotated[str | None, Option(help="Method of every attempt: plain or hypotheses.")] = None
    engine: EngineOption = "auto"
    slots: Annotated[int, Option(min=1, help="Attempts per batch.")] = 16
    threads: Threads = 1


@dataclass(frozen=True, kw_only=True)
class PeerOptions(BenchOptions):
    python: Annotated[
        Path, Option(help="Python of an environment with benchmarks/peers/requirements.txt.")
    ] = Path(".peers/bin/python")
    puzzles: Puzzles = 150
    connections: Connections = 16
    rate: Annotated[float, Option(min=0.1, help="Puzzles per second of the open loop.")] = 20.0
    rounds: TurnRounds = 3
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(BenchOptions, TurnOptions):
    puzzle: Annotated[
        list[str] | None,
        Option(
            help="Puzzle; may be repeated with --compare. Default: sudoku; with --scaling "
            "sudoku-6x6; with --compare also sudoku-4x4 and logistics-6x6."
        ),
    ] = None
    preset: Annotated[
        str | None,
        Option(help="Model size: small, log, published... Default: small; scaling: relational."),
    ] = None
    batch: Annotated[int, Option(min=1, help="Rows per update.")] = 32
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads per trainer. Default: all cores.")
    ] = None
    compiled: Annotated[
        bool, Option("--compile", help="Also time our trainer with torch.compile.")
    ] = False
    compare: Annotated[
        bool,
        Option("--compare", help="Train HRM, TRM, a transformer and relational blocks instead."),
    ] = False
    scaling: Annotated[
        bool, Option("--scaling", help="Train on 1/8, 1/4, 1/2 and all of the puzzles instead.")
    ] = False
    samples: Annotated[int, Option(min=1, help="Samples of each training to scale.")] = 24_000
    cpu_s: Annotated[float, Option(min=0, help="CPU seconds per compared training.")] = 25.0
    puzzles: Annotated[
        tuple[int, int] | None,
        Option(help="Numbers of training and held-out puzzles. Default: 2000 200; scaling 32 200."),
    ] = None
    seed: Seed = 0


OptionsT = TypeVar("OptionsT", bound=BenchOptions)


def questions_of(
    puzzle: "Puzzle", file: Path | None, difficulty: str, *, count: int, seed: int
) -> "Questions":
    """Return at most `count` puzzles of a file, or generated ones."""
    from hrm_puzzles.data.sources import questions_from_file, questions_made

    if file is not None:
        return questions_from_file(file, puzzle).sample(count, seed)
    return questions_made(puzzle, count, difficulty=difficulty, seed=seed)


def texts_of(puzzle: "Puzzle", questions: "Questions") -> list[object]:
    """Return the questions as a client sends them."""
    return [puzzle.asked(puzzle.decode(tokens_T), "") for tokens_T in questions.tokens_NT]


def measured(
    options: type[OptionsT], example: str, **settings: Any
) -> Callable[[Callable[[OptionsT], Table]], Callable[..., None]]:
    """Make a command of a function that returns a table; `settings` are of `Command.command`."""

    def command_of(function: Callable[[OptionsT], Table]) -> Callable[..., None]:
        @taking(options)
        @wraps(function)
        def command(given: OptionsT) -> None:
            with leaving_at_sigterm():
                table = function(given)
            if given.as_json:
                print(table.as_json(vars(given)))
            else:
                print(table.text())

        return app.command(epilog=f"Example: hrm-bench {example}", **settings)(command)

    return command_of
