"""The command `hrm-serve`.

Only light modules are imported at the top, because the spawned engine process imports the main script once more.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from hrm_edge_runtime.bundle import Bundle

serve_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MIN_KEY_LENGTH = 16
ENGINES_HELP = "auto, cpu, cuda, ort-tensorrt or tensorrt, and a precision it holds"


def serve() -> None:
    """Entry point of `hrm-serve`."""
    serve_app()


@serve_app.command(epilog="Example: hrm-serve sudoku maze-8x8 --port 8000 --slots 4")
def serve_command(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(help="Bundle directories or names of shipped ones, served together; without any the default."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Attempts in one batch; 1 to 4 on a CPU.")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of an engine; without it, all cores.")] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE[:PRECISION]", help=f"What runs the bundles: {ENGINES_HELP}.")
    ] = "auto",
    max_attempts: Annotated[int, typer.Option(min=1, max=1024, help="The most attempts a request may ask for.")] = 16,
    queue_limit: Annotated[int, typer.Option(min=0, help="Puzzles that may wait for a slot; more get 503.")] = 64,
    drain_seconds: Annotated[float, typer.Option(min=0, help="Time for admitted work after SIGTERM or Ctrl-C.")] = 30.0,
    stall_seconds: Annotated[float, typer.Option(min=1, help="An engine without a step for so long is killed.")] = 60.0,
    api_key_file: Annotated[Path | None, typer.Option(help="File with one key per line; requests need one.")] = None,
) -> None:
    """Serve bundles over HTTP, with a web page at / and a description at /docs."""
    from hrm_edge_runtime.engines.engine import EngineUnavailableError
    from hrm_edge_runtime.manifest import BundleError
    from hrm_edge_runtime.service.lanes import LaneDefaults, planned
    from hrm_edge_runtime.service.server import ServerOptions, run_server

    defaults = LaneDefaults(
        engine=engine, num_slots=slots, num_threads=threads, queue_limit=queue_limit, max_attempts=max_attempts
    )
    try:
        models, make_workbench = planned([_opened(name) for name in bundles or [None]], defaults)
        keys = read_keys(api_key_file) if api_key_file else ()
    except (BundleError, EngineUnavailableError, KeyFileError) as error:
        _fail("hrm-serve", error)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if host not in LOOPBACK and not keys:
        logging.warning("listening on %s without keys: whoever reaches this machine may use it", host)
    served = ", ".join(f"{model.name} ({model.puzzle.name})" for model in models)
    logging.info("serving %s on http://%s:%d", served, host, port)
    options = ServerOptions(
        host=host,
        port=port,
        queue_limit=queue_limit,
        drain_s=drain_seconds,
        stall_s=stall_seconds,
        api_keys=frozenset(keys),
    )
    run_server(make_workbench, models, options)


class KeyFileError(ValueError):
    """A key file that cannot be used."""


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one per line; refuses a file without any, and keys too short to be safe."""
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"the key file {path} cannot be read ({error}): write one key per line into it.") from error
    if not keys:
        raise KeyFileError(f"the key file {path} is empty: write one key per line into it.")
    if any(len(key) < MIN_KEY_LENGTH for key in keys):
        raise KeyFileError(f"a key in {path} has fewer than {MIN_KEY_LENGTH} characters: make it longer, at random.")
    return keys


def _opened(name: str | None) -> Bundle:
    from hrm_edge_runtime.bundle import Bundle, find_bundle

    return Bundle.open(find_bundle(name))


def _fail(command: str, error: Exception) -> NoReturn:
    sys.stderr.write(f"{command}: {error}\n")
    raise typer.Exit(1)
