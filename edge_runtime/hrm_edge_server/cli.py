"""The command `hrm-serve`.

The top imports little, because the spawned engine process imports the main script too.
"""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hrm_edge_runtime.contract.completion import bundles_from
from hrm_host import system
from hrm_host.command import Command, taking

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.worker.lanes import LaneDefaults
    from hrm_edge_server.middleware import Access
    from hrm_edge_server.server import ServerOptions

serve = Command("hrm-serve")

UNITS = {
    "": 1,
    "B": 1,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")
MAX_SLOTS = 1024

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
Slots = Annotated[
    str, typer.Option(help="Attempts per batch: a number, or auto to choose from measured times.")
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="CPU threads per engine. Default: all cores."),
]
MaxAttempts = Annotated[
    int, typer.Option(min=1, max=1024, help="Maximum number of attempts per request.")
]
QueueLimit = Annotated[
    int,
    typer.Option(min=0, help="Maximum number of puzzles waiting for a slot; further ones get 503."),
]
DrainSeconds = Annotated[
    float, typer.Option(min=0, help="Seconds to finish admitted work after SIGTERM or Ctrl-C.")
]
StallSeconds = Annotated[
    float,
    typer.Option(
        min=1, help="Kill and restart an engine that finishes no step for this many seconds."
    ),
]
Ready = Annotated[
    Literal["all", "first"],
    typer.Option(
        help="Models that must be ready before /readyz answers 200: all that did not fail, or one."
    ),
]
KeyFile = Annotated[
    Path | None, typer.Option(help="Key file written by hrm-key; every request then needs a key.")
]
Certificate = Annotated[Path | None, typer.Option(help="Certificate chain (PEM) for HTTPS.")]
PrivateKey = Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")]
Bundles = Annotated[
    list[str] | None,
    typer.Argument(
        help="Bundle directories or names of shipped bundles. Default: all shipped bundles.",
        autocompletion=bundles_from,
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Memory limit of the engine process, as 2GiB. Default: free memory less headroom.",
    ),
]
BundleDir = Annotated[
    list[Path] | None,
    typer.Option(help="Folder from which an admin may add bundles at run time; may be repeated."),
]
UploadDir = Annotated[
    Path | None,
    typer.Option(help="Folder for bundles that admins upload with hrm-push. Default: no uploads."),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="ENGINE[:PRECISION]",
        help="Engine: auto, cpu, cuda, tensorrt or unrolled, with an optional :PRECISION.",
    ),
]
Connections = Annotated[
    int,
    typer.Option(min=1, help="Maximum number of open connections; at the limit idle ones close."),
]
KeepAlive = Annotated[
    int, typer.Option(min=1, max=3600, help="Seconds that an idle connection stays open.")
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Let web pages of this origin send requests, such as https://my.site.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow a --host beyond loopback without keys: whoever can connect may use it.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="Public host name of a server without keys; may be repeated."),
]
Log = Annotated[
    Literal["text", "json"], typer.Option(help="Format of log lines on standard error.")
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The arguments and options of `hrm-serve`, in the order of its help."""

    bundles: Bundles = None
    host: Host = "127.0.0.1"
    port: Port = 8000
    slots: Slots = "auto"
    memory_budget: MemoryLimit = None
    bundle_dir: BundleDir = None
    upload_dir: UploadDir = None
    threads: Threads = None
    engine: EngineName = "auto"
    max_attempts: MaxAttempts = 16
    queue_limit: QueueLimit = 256
    drain_seconds: DrainSeconds = 30.0
    stall_seconds: StallSeconds = 60.0
    ready: Ready = "all"
    max_connections: Connections = 4096
    keep_alive_seconds: KeepAlive = 75
    keys: KeyFile = None
    cors: Cors = None
    tls_cert: Certificate = None
    tls_key: PrivateKey = None
    insecure: Insecure = False
    allow_host: Hosts = None
    log: Log = "text"


@serve.command(
    groups={
        "Engine": "engine slots threads memory_budget stall_seconds ready",
        "Limits": "max_attempts queue_limit max_connections keep_alive_seconds drain_seconds",
        "Access": "keys cors tls_cert tls_key insecure allow_host bundle_dir upload_dir",
    },
    epilog="Examples: hrm-serve; hrm-serve sudoku maze-8x8 --port 8000; "
    "hrm-serve model.bundle --slots 4",
)
@taking(ServeOptions)
def serve_command(options: ServeOptions) -> None:
    """Serve bundles over HTTP, with a web page at / and a description at /docs."""
    system.ignore_hang_ups()
    # numpy's BLAS would start a thread for each core in every process; the server never uses it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hrm_edge_runtime.contract import logs
    from hrm_edge_runtime.worker.lanes import check_threads
    from hrm_edge_server import auth, server
    from hrm_edge_server.library import Library
    from hrm_edge_server.upload_folder import UploadFolder
    from hrm_edge_server.uploads import Uploads
    from hrm_host.machine import threads_left

    logs.configure(options.log)
    defaults = _lane_defaults(options)
    check_threads(threads_left())
    opened = _opened(options.bundles)
    uploads = None
    kept: dict[str, Path] = {}
    if options.upload_dir is not None:
        folder = UploadFolder(options.upload_dir)
        uploads = Uploads(folder)
        kept = folder.kept()
    library = Library(defaults, options.bundle_dir or (), uploads)
    served = library.start_with(opened, kept)
    access = _access(options)
    warnings = auth.bind_warnings(
        options.host,
        with_keys=options.keys is not None,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        insecure=options.insecure,
    )
    for warning in warnings:
        logging.warning(warning)
    names = ", ".join(model.name for model in served)
    logging.info("loading %d models: %s", len(served), names)
    server.run_server(library, served, _server_options(options, access))


def _lane_defaults(options: ServeOptions) -> "LaneDefaults":
    from hrm_edge_runtime.worker.lanes import LaneDefaults, MemoryBudget

    limit_bytes = None
    if options.memory_budget:
        limit_bytes = bytes_from(options.memory_budget)
    return LaneDefaults(
        engine=options.engine,
        num_slots=slots_from(options.slots),
        num_threads=options.threads,
        queue_limit=options.queue_limit,
        max_attempts=options.max_attempts,
        budget=MemoryBudget(limit_bytes=limit_bytes),
    )


def _access(options: ServeOptions) -> "Access":
    from hrm_edge_server.auth import KeyRing, checked_origins
    from hrm_edge_server.middleware import Access

    keys = None
    if options.keys:
        keys = KeyRing(options.keys)
    origins = checked_origins(options.cors or ())
    hosts = (options.host, *(options.allow_host or ()))
    return Access(keys=keys, hosts=hosts, origins=origins)


def _server_options(options: ServeOptions, access: "Access") -> "ServerOptions":
    from hrm_edge_server.server import ServerOptions

    return ServerOptions(
        host=options.host,
        port=options.port,
        queue_limit=options.queue_limit,
        drain_s=options.drain_seconds,
        stall_s=options.stall_seconds,
        max_connections=options.max_connections,
        keep_alive_s=options.keep_alive_seconds,
        access=access,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        ready=options.ready,
        log=options.log,
    )


def _opened(names: Sequence[str] | None) -> "list[Bundle]":
    """The named bundles; without names, all shipped ones."""
    from hrm_edge_runtime.contract import bundle, shipped

    chosen = names or list(shipped.shipped_bundles())
    return [bundle.Bundle.open(shipped.find_bundle(name)) for name in chosen]


def slots_from(text: str) -> int | None:
    """The number of slots; None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
        message = f"{text!r} is neither auto nor 1 to {MAX_SLOTS}"
        raise typer.BadParameter(message, param_hint="--slots")
    return int(text)


def bytes_from(text: str) -> int:
    """A number of bytes, written as 2GiB, 500MB or 1000."""
    matched = SIZE.fullmatch(text.strip())
    if matched is not None:
        number = float(matched[1])
        unit = matched[2].upper()
        if number and unit in UNITS:
            return int(number * UNITS[unit])
    message = f"{text!r} is not a number of bytes: write it as 2GiB"
    raise typer.BadParameter(message, param_hint="--memory-budget")
