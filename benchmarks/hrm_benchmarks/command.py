"""The frame of a subcommand of `hrm-bench`, and the options that several share.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Exit, Option

from hrm_benchmarks.report import Columns, Row, leaving_at_sigterm, print_json, print_table
from hrm_edge_runtime.contract.completion import bundles_from
from hrm_host.command import Command

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_puzzles.data.sources import Questions

app = Command("hrm-bench", extra="serve,bench", no_args_is_help=True)
"""Entry point of `hrm-bench`."""

BundleOption = Annotated[
    str | None,
    Option(help="Bundle directory or shipped name. Default: sudoku.", autocompletion=bundles_from),
]
BundleOrScript = Annotated[
    str | None,
    Option(help="Bundle directory or shipped name. Default: a scripted engine."),
]
EngineOption = Annotated[str, Option(metavar="ENGINE[:PRECISION]", help="Engine, as in hrm-serve.")]
Csv = Annotated[
    Path | None, Option(help="CSV file in the Sudoku-Extreme format. Default: generated puzzles.")
]
Easiest = Annotated[
    str | None, Option(help="Difficulty of generated puzzles. Default: the easiest.")
]
Hardest = Annotated[
    str | None, Option(help="Difficulty of generated puzzles. Default: the hardest.")
]
Puzzles = Annotated[int, Option(min=1, help="Number of different puzzles.")]
Slots = Annotated[int, Option(min=1, help="Slots of the server.")]
Threads = Annotated[int, Option(min=1, help="CPU threads of the engine.")]
Seed = Annotated[int, Option(min=0, help="Random seed.")]
TurnRounds = Annotated[int, Option(min=1, help="Rounds; figures are medians.")]
TurnS = Annotated[float, Option(min=0, help="Seconds per contestant and round.")]
CpuClock = Annotated[
    bool, Option(help="Measure CPU time instead of wall time, for a busy machine.")
]
Json = Annotated[bool, Option("--json", help="Print JSON with all figures instead of a table.")]


@app.callback()
def bench() -> None:
    """Measure serving and training against baselines."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The result of a command."""

    figures: Row  # output of --json; with `faults`, the command exits with 1
    show: Callable[[], object]  # prints the figures for people
    title: str = ""


def in_table(
    name: str,
    rows: Sequence[Row],
    columns: Columns,
    *,
    title: str = "",
    caption: str = "",
    left: Collection[str] = (),
    **figures: object,
) -> Measurement:
    """Show rows as a table; --json prints them as the figure `name`, beside `figures`."""
    show = partial(print_table, title, columns, rows, caption=caption, left=left)
    return Measurement(figures={**figures, name: rows}, show=show, title=title)


def opened_bundle(name: str | None) -> "Bundle":
    """Open a bundle by its path or shipped name; without a name, the default."""
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle

    return Bundle.open(find_bundle(name))


def questions_for(
    bundle: "Bundle", csv: Path | None, difficulty: str | None, num_puzzles: int, seed: int
) -> "Questions":
    """Return the puzzles of a file, or generated ones; by default the easiest."""
    from hrm_puzzles.data.sources import questions_from_file, questions_made

    puzzle = bundle.puzzle
    if csv is not None:
        return questions_from_file(csv, puzzle).sample(num_puzzles, seed)
    easiest = next(iter(puzzle.difficulties), "")  # puzzles that cannot be generated have none
    return questions_made(puzzle, num_puzzles, difficulty=difficulty or easiest, seed=seed)


def chosen(names: list[str] | None, known: Collection[str], what: str) -> list[str]:
    """The names, or all known ones without names; raises BadParameter for an unknown name."""
    for name in names or ():
        if name not in known:
            raise BadParameter(f"{name!r} is not a {what}: use one of {', '.join(known)}")
    return names or list(known)


def measured(
    example: str, **settings: Any
) -> Callable[[Callable[..., Measurement]], Callable[..., None]]:
    """Make a command of a function that returns a Measurement, and add the option --json.

    `settings` are those of `Command.command`.
    """

    def command_of(function: Callable[..., Measurement]) -> Callable[..., None]:
        @wraps(function)
        def command(json: bool, **options: Any) -> None:
            with leaving_at_sigterm():
                result = function(**options)
            if json:
                print_json({"title": result.title, **options}, **result.figures)
            else:
                result.show()
            has_faults = bool(result.figures.get("faults"))
            raise Exit(int(has_faults))

        command.__dict__["__signature__"] = _with_json(inspect.signature(function))
        return app.command(epilog=f"Example: hrm-bench {example}", **settings)(command)

    return command_of


def _with_json(signature: inspect.Signature) -> inspect.Signature:
    option = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    parameters = [*signature.parameters.values(), option]
    return signature.replace(parameters=parameters)
