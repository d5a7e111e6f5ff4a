"""The command `hrm-solve`: puzzles to answers, through a server or with a bundle opened here."""

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm_host.command import Columns, Command, Threads, taking

if TYPE_CHECKING:
    from hrm_edge.solvers import Solver

MAX_PATIENCE_S = 86_400.0  # a day; also the longest single pause

main = Command("hrm-solve")


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The argument and the options of `hrm-solve`, in the order of its help."""

    puzzle: Annotated[
        str,
        typer.Argument(
            help="A puzzle, a file (one puzzle per line, boards with blank lines between them, "
            "CSV, or requests as NDJSON), or - for standard input."
        ),
    ]
    columns: Columns = None
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of the server. Default: http://127.0.0.1:8000, or the shipped models on "
            "this machine if no server answers there."
        ),
    ] = None
    bundle: Annotated[
        str | None,
        typer.Option(help="Solve on this machine with a bundle: a directory or a shipped name."),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(help="Puzzle kind, if the server has several."),
    ] = None
    model: Annotated[str | None, typer.Option(help="Model name, if the server has several.")] = None
    policy: Annotated[
        str | None,
        typer.Option(help="Halting policy: verified, learned or fixed. Default: the model's."),
    ] = None
    max_segments: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of segments per attempt.")
    ] = None
    attempts: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of attempts per puzzle; further ones solve transformed copies."
        ),
    ] = None
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Deadline per puzzle in milliseconds.")
    ] = None
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Attempts per batch.")] = 4
    threads: Threads = None
    engine: Annotated[
        str,
        typer.Option(metavar="ENGINE[:PRECISION]", help="Engine for the bundle, as in hrm-serve."),
    ] = "auto"
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the server's key in its first line. Default: HRM_API_KEY."),
    ] = None
    cacert: Annotated[
        Path | None,
        typer.Option(help="File with the server's certificate. Default: SSL_CERT_FILE."),
    ] = None
    connections: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Batches at once, for fleets. Default: the slots of a model."
        ),
    ] = None
    patience: Annotated[
        float,
        typer.Option(
            min=0, max=MAX_PATIENCE_S, help="Give up after this many seconds without an answer."
        ),
    ] = 60.0
    out: Annotated[
        Path | None,
        typer.Option(help="Write answers to this NDJSON file, in order; continue it if it exists."),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print each answer as JSON; with --out, print the counts."),
    ] = False


@main.command(
    groups={
        "Answer": "kind model policy max_segments attempts",
        "With a server": "url key_file cacert connections patience deadline_ms",
        "On this machine": "bundle slots threads engine",
    },
    epilog="Examples: hrm-solve "
    '"53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"; '
    "hrm-solve puzzles.csv --bundle sudoku --out answers.ndjson",
)
@taking(SolveOptions)
def solve(options: SolveOptions) -> None:
    """Solve one puzzle or many.

    Exit status: 0 if every puzzle is solved, 1 if one is not, 2 for wrong use, 3 if the work
    cannot start or continue. With --out, run the same command again to continue.
    """
    from hrm_edge import output, puzzles, solvers

    puzzles.require_file(options.puzzle)
    fields = solvers.options_of(_stated(options))
    with contextlib.ExitStack() as stack:
        solver = _solver(options, stack)
        status = output.run(
            options.puzzle,
            solver,
            fields,
            columns=options.columns,
            out=options.out,
            as_json=options.as_json,
        )
    raise typer.Exit(status)


def _solver(options: SolveOptions, stack: contextlib.ExitStack) -> "Solver":
    """The named bundle, the named server, or the usual server if it answers."""
    from hrm_edge import client
    from hrm_edge.connection import read_key
    from hrm_edge.errors import UnreachableError
    from hrm_edge.solvers import from_server
    from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles

    if options.bundle is not None:
        return _with_bundles([find_bundle(options.bundle)], options)
    server = client.Client(
        options.url or client.DEFAULT_URL,
        api_key=read_key(options.key_file),
        cacert=options.cacert,
        connections=options.connections,
        patience_s=options.patience,
    )
    opened = stack.enter_context(server)
    try:
        return from_server(opened, kind=options.kind, model=options.model)
    except UnreachableError:
        # only a server takes a key
        if options.url is not None or options.key_file is not None:
            raise
    remark = f"no server answers at {client.DEFAULT_URL}: solving here with the shipped models"
    print(remark, file=sys.stderr)
    return _with_bundles(shipped_bundles().values(), options)


def _stated(options: SolveOptions) -> dict[str, Any]:
    """The fields of a request that the command line sets."""
    from hrm_edge_runtime.api.schema import SolveRequest

    stated: dict[str, Any] = {}
    for name in SolveRequest.model_fields:
        value = getattr(options, name, None)
        if name != "puzzle" and value is not None:
            stated[name] = value
    return stated


def _with_bundles(paths: Iterable[Path], options: SolveOptions) -> "Solver":
    from hrm_edge.solvers import from_bundles
    from hrm_edge_runtime.contract.bundle import Bundle

    bundles = map(Bundle.open, paths)
    return from_bundles(
        bundles, options.engine, num_slots=options.slots, num_threads=options.threads
    )
