"""The command `hrm-solve`: puzzles to answers, through a server or a bundle opened here."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from hrm_host.command import Command

KEY_VARIABLE = "HRM_API_KEY"
STATED = ("kind", "model", "policy", "max_segments", "attempts", "how", "deadline_ms", "best_so_far", "priority")

MAX_PATIENCE_S = 86_400.0  # a day; no longer is slept at once either
MAX_KEY_FILE = 4096  # characters

main = Command("hrm-solve")


@main.command(
    groups={
        "Answer": "kind model policy max_segments attempts how",
        "With a server": "url key_file patience deadline_ms best_so_far priority",
        "With --bundle": "bundle slots threads engine",
    },
    epilog='Examples: hrm-solve "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"; '
    "hrm-solve puzzles.csv --bundle sudoku --out answers.ndjson",
)
def solve(
    puzzle: Annotated[
        str,
        typer.Argument(
            help="A puzzle, a file (one in each line, CSV in the published form, or requests as NDJSON), or - for "
            "standard input."
        ),
    ],
    url: Annotated[str, typer.Option(help="The server to ask.")] = "http://127.0.0.1:8000",
    bundle: Annotated[
        str | None, typer.Option(help="Open this bundle here instead: a directory or a shipped one's name.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="The puzzle's name, where a server has several.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name, where a server has several.")] = None,
    policy: Annotated[str | None, typer.Option(help="verified, learned or fixed; without it the model's own.")] = None,
    max_segments: Annotated[int | None, typer.Option(min=1, help="At most this many segments.")] = None,
    attempts: Annotated[
        int | None, typer.Option(min=1, help="Try each puzzle as so many copies under its symmetries.")
    ] = None,
    how: Annotated[
        str | None, typer.Option(help="plain or hypotheses, in every attempt; without it all but the first as it pays.")
    ] = None,
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Refuse what is not answered so soon after it was sent.")
    ] = None,
    best_so_far: Annotated[
        bool | None,
        typer.Option("--best-so-far", help="At the deadline take what the model has by then."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=-3, max=3, help="Whose turn comes first; greater goes first.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Attempts in one batch.")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of the engine.")] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE[:PRECISION]", help="What runs the bundle, as in hrm-serve.")
    ] = "auto",
    key_file: Annotated[
        Path | None, typer.Option(help=f"File whose first line is the server's key; else {KEY_VARIABLE} is looked at.")
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0, max=MAX_PATIENCE_S, help="Seconds without an answer after which a server that refuses is given up."
        ),
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Write answers as NDJSON, in the order of the puzzles; a file begun before is continued."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print whole answers as JSON, one per line; with --out, the counts.")
    ] = False,
) -> None:
    """Solve a puzzle, or many.

    Exits with 0 where every one is solved, with 1 where one is not, and with 2 where the work could not be begun or
    finished; with --out the same command then goes on where it stopped.
    """
    stated = {name: value for name, value in locals().items() if name in STATED and value is not None}
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_edge_runtime.engines.factory import prepare
    from hrm_edge_runtime.solve import output, solvers

    solvers.require_file(puzzle)
    with contextlib.ExitStack() as stack:
        if bundle is not None:
            opened = Bundle.open(find_bundle(bundle))
            choice = prepare(opened, engine, num_slots=slots)
            options = solvers.options_of(stated)
            solver = solvers.from_bundle(opened, choice, num_slots=slots, num_threads=threads)
        else:
            key, options = read_key(key_file), solvers.options_of(stated)
            server = solvers.from_server(url, api_key=key, patience_s=patience, kind=kind, model=model)
            solver = stack.enter_context(server)
        raise typer.Exit(output.run(puzzle, solver, options, out=out, as_json=as_json))


def read_key(path: Path | None) -> str | None:
    """The key for a server: a file's first line, else the environment's; a command line would show it to every user."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        with path.open(encoding="utf-8-sig") as stream:
            lines = stream.read(MAX_KEY_FILE).split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the key file {path} cannot be read ({error}): write the server's key into it.") from error
    if not lines:
        raise ValueError(f"the key file {path} is empty: write the server's key into it.")
    return lines[0]
