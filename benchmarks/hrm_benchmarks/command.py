"""The frame of a subcommand of `hrm-bench`, and the options that several share.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hrm_benchmarks.report import Table, leaving_at_sigterm
from hrm_edge_runtime.contract.shipped import bundles_from
from hrm_host.command import Command

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

app = Command("hrm-bench", extra="serve,bench", no_args_is_help=True)

BundleOption = Annotated[
    str | None,
    Option(help="Bundle directory or shipped name. Default: sudoku.", autocompletion=bundles_from),
]
EngineOption = Annotated[str, Option(metavar="ENGINE[:PRECISION]", help="Engine, as in hrm-serve.")]
Puzzles = Annotated[int, Option(min=1, help="Number of different puzzles.")]
Connections = Annotated[int, Option(min=1, help="Connections that send single puzzles.")]
Threads = Annotated[int, Option(min=1, help="CPU threads of the engine.")]
Seed = Annotated[int, Option(min=0, help="Random seed.")]
TurnRounds = Annotated[int, Option(min=1, help="Rounds; figures are medians.")]
TurnS = Annotated[float, Option(min=0, help="Seconds per contestant and round.")]
CpuClock = Annotated[
    bool, Option(help="Measure CPU time instead of wall time, for a busy machine.")
]
Json = Annotated[bool, Option("--json", help="Print JSON with all figures instead of a table.")]


def opened_bundle(name: str | None) -> "Bundle":
    """Open a bundle by its path or shipped name; without a name, the default."""
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle

    return Bundle.open(find_bundle(name))


def measured(
    example: str, **settings: Any
) -> Callable[[Callable[..., Table]], Callable[..., None]]:
    """Make a command of a function that returns a table, and add the option --json.

    `settings` are those of `Command.command`.
    """

    def command_of(function: Callable[..., Table]) -> Callable[..., None]:
        @wraps(function)
        def command(json: bool, **options: Any) -> None:
            with leaving_at_sigterm():
                table = function(**options)
            print(table.as_json(options) if json else table.text())

        signature = inspect.signature(function)
        option = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        parameters = [*signature.parameters.values(), option]
        command.__dict__["__signature__"] = signature.replace(parameters=parameters)
        return app.command(epilog=f"Example: hrm-bench {example}", **settings)(command)

    return command_of
