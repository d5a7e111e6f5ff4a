"""The command `hrm-solve`: puzzles to answers, through a server or with a bundle opened here."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from hrm_host.command import Command

KEY_VARIABLE = "HRM_API_KEY"
REQUEST_FIELDS = (
    "kind",
    "model",
    "policy",
    "max_segments",
    "attempts",
    "how",
    "deadline_ms",
    "best_so_far",
    "priority",
)

MAX_PATIENCE_S = 86_400.0  # a day; also the longest single pause
MAX_KEY_FILE = 4096  # characters

main = Command("hrm-solve")


@main.command(
    groups={
        "Answer": "kind model policy max_segments attempts how",
        "With a server": "url key_file patience deadline_ms best_so_far priority",
        "With --bundle": "bundle slots threads engine",
    },
    epilog="Examples: hrm-solve "
    '"53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"; '
    "hrm-solve puzzles.csv --bundle sudoku --out answers.ndjson",
)
def solve(
    puzzle: Annotated[
        str,
        typer.Argument(
            help="A puzzle, a file (one puzzle per line, the published CSV form, or requests as "
            "NDJSON), or - for standard input."
        ),
    ],
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    bundle: Annotated[
        str | None,
        typer.Option(help="Solve on this machine with a bundle: a directory or a shipped name."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Puzzle kind, if the server has several.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name, if the server has several.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Halting policy: verified, learned or fixed [default: the model's]."),
    ] = None,
    max_segments: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of segments per attempt.")
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(min=1, help="Number of attempts per puzzle; further ones transform it."),
    ] = None,
    how: Annotated[
        str | None,
        typer.Option(help="plain or hypotheses for every attempt [default: what the model needs]."),
    ] = None,
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Deadline per puzzle in milliseconds.")
    ] = None,
    best_so_far: Annotated[
        bool | None,
        typer.Option("--best-so-far", help="At the deadline, return the best answer so far."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=-3, max=3, help="Higher priorities run first.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Attempts in one batch.")] = 4,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Threads of the engine [default: all cores]."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="ENGINE[:PRECISION]", help="Engine for the bundle, as in hrm-serve."),
    ] = "auto",
    key_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the server's key in its first line [default: {KEY_VARIABLE}]."
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0, max=MAX_PATIENCE_S, help="Give up after this many seconds of refusals."
        ),
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Write answers to this NDJSON file, in order; continue it if it exists."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print each answer as JSON; with --out, print the counts."),
    ] = False,
) -> None:
    """Solve one puzzle or many.

    Exit status: 0 if every puzzle is solved, 1 if one is not, 2 for wrong use, 3 if the work
    cannot begin or go on. With --out, run the same command again to continue.
    """
    given = dict(locals())
    stated = {name: given[name] for name in REQUEST_FIELDS if given[name] is not None}
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_edge_runtime.engines.factory import prepare
    from hrm_edge_runtime.solve import output, puzzles, solvers

    puzzles.require_file(puzzle)
    with contextlib.ExitStack() as stack:
        if bundle is not None:
            opened = Bundle.open(find_bundle(bundle))
            choice = prepare(opened, engine, num_slots=slots)
            options = solvers.options_of(stated)
            solver = solvers.from_bundle(opened, choice, num_slots=slots, num_threads=threads)
        else:
            key = read_key(key_file)
            options = solvers.options_of(stated)
            server = solvers.from_server(
                url, api_key=key, patience_s=patience, kind=kind, model=model
            )
            solver = stack.enter_context(server)
        status = output.run(puzzle, solver, options, out=out, as_json=as_json)
    raise typer.Exit(status)


def read_key(path: Path | None) -> str | None:
    """Read the server's key from a file's first line, or from the environment without a file.

    There is no option for the key itself, because every user can read command lines.
    """
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        with path.open(encoding="utf-8-sig") as stream:
            words = stream.read(MAX_KEY_FILE).split()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "write the server's key into it"
        raise ValueError(f"the key file {path} cannot be read ({error}): {remedy}.") from error
    if not words:
        raise ValueError(f"the key file {path} is empty: write the server's key into it.")
    return words[0]
