"""The command `hrm-serve`.

The top imports little, because the spawned engine process imports the main script too.
"""

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

import typer

from hrm_edge_server.options import ServeOptions
from hrm_host import system
from hrm_host.command import Command, taking

if TYPE_CHECKING:
    from hrm_edge_runtime.worker.lanes import LaneDefaults
    from hrm_edge_server.middleware import Access

serve = Command("hrm-serve")

MAX_SLOTS = 1024


@serve.command(
    groups={
        "Engine": "engine slots threads memory_budget stall_seconds ready",
        "Limits": "max_attempts queue_limit max_connections keep_alive_seconds drain_seconds",
        "Access": "keys cors tls_cert tls_key insecure allow_host upload_dir",
    },
    epilog="Examples: hrm-serve; hrm-serve sudoku maze-8x8 --port 8000; "
    "hrm-serve model.bundle --slots 4",
)
@taking(ServeOptions)
def serve_command(options: ServeOptions) -> None:
    """Serve bundles over HTTP, with a web page at / and a description at /docs."""
    system.ignore_hang_ups()
    # until uvicorn has its own: process 1 of a container ignores signals without a handler;
    # an exception would be lost in native code that imports modules, or end in a traceback
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(0))
    # numpy's BLAS would start a thread for each core in every process; the server never uses it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hrm_edge_runtime.contract import logs
    from hrm_edge_runtime.contract.shipped import open_bundle, shipped_bundles
    from hrm_edge_runtime.worker.lanes import check_threads
    from hrm_edge_server import auth, server
    from hrm_edge_server.library import Library
    from hrm_edge_server.uploads import UploadFolder, Uploads
    from hrm_host.machine import threads_left

    logs.configure(options.log)
    defaults = _lane_defaults(options)
    check_threads(threads_left())
    opened = [open_bundle(name) for name in options.bundles or shipped_bundles()]
    uploads = None
    if options.upload_dir is not None:
        uploads = Uploads(UploadFolder(options.upload_dir))
    library = Library(defaults, uploads)
    served = library.start_with(opened)
    access = _access(options)
    warning = auth.bind_warning(options)
    if warning is not None:
        logging.warning(warning)
    names = ", ".join(model.name for model in served)
    logging.info("loading %d models: %s", len(served), names)
    server.run_server(library, served, options, access)


def _lane_defaults(options: ServeOptions) -> "LaneDefaults":
    from hrm_edge_runtime.worker.lanes import LaneDefaults, MemoryBudget

    limit_bytes = None
    if options.memory_budget:
        limit_bytes = _bytes_from(options.memory_budget)
    return LaneDefaults(
        engine=options.engine,
        num_slots=_slots_from(options.slots),
        num_threads=options.threads,
        queue_limit=options.queue_limit,
        max_attempts=options.max_attempts,
        budget=MemoryBudget(limit_bytes=limit_bytes),
    )


def _access(options: ServeOptions) -> "Access":
    from hrm_edge_server.auth import KeyRing, checked_hosts, checked_origins
    from hrm_edge_server.middleware import Access

    keys = None
    if options.keys:
        keys = KeyRing(options.keys)
    origins = checked_origins(options.cors or ())
    hosts = (options.host, *checked_hosts(options.allow_host or ()))
    return Access(keys, hosts, origins)


def _slots_from(text: str) -> int | None:
    """The number of slots; None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
        message = f"{text!r} is neither auto nor 1 to {MAX_SLOTS}"
        raise typer.BadParameter(message, param_hint="--slots")
    return int(text)


def _bytes_from(text: str) -> int:
    """A number of bytes, written as 2GiB, 500MB or 1000."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    num_bytes = 0
    with contextlib.suppress(ValidationError):
        num_bytes = TypeAdapter(ByteSize).validate_python(text.strip())
    if num_bytes == 0:
        message = f"{text!r} is not a number of bytes: write it as 2GiB"
        raise typer.BadParameter(message, param_hint="--memory-budget")
    return num_bytes
