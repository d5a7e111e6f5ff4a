"""The options of `hrm-serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from hrm_host.command import Threads


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The arguments and options of `hrm-serve`, in the order of its help."""

    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Bundle directories or names of shipped bundles. Default: all shipped bundles."
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000
    slots: Annotated[
        str,
        typer.Option(help="Attempts per batch: a number, or auto to choose from measured times."),
    ] = "auto"
    memory_budget: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory limit of the engine process, as 2GiB. Default: free memory less headroom.",
        ),
    ] = None
    upload_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for bundles that admins upload with hrm-push. Default: no uploads."
        ),
    ] = None
    threads: Threads = None
    engine: Annotated[
        str,
        typer.Option(
            metavar="ENGINE[:PRECISION]",
            help="Engine: auto, cpu, cuda, tensorrt or unrolled, with an optional :PRECISION.",
        ),
    ] = "auto"
    max_attempts: Annotated[
        int, typer.Option(min=1, max=1024, help="Maximum number of attempts per request.")
    ] = 16
    queue_limit: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of puzzles waiting for a slot; further ones get 503."
        ),
    ] = 256
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds to finish admitted work after SIGTERM or Ctrl-C.")
    ] = 30.0
    stall_seconds: Annotated[
        float,
        typer.Option(
            min=1, help="Kill and restart an engine that finishes no step for this many seconds."
        ),
    ] = 60.0
    ready: Annotated[
        Literal["all", "first"],
        typer.Option(
            help="Models that must be ready before /readyz answers 200: all that did not fail, "
            "or one."
        ),
    ] = "all"
    max_connections: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of open connections; at the limit idle ones close."
        ),
    ] = 4096
    keep_alive_seconds: Annotated[
        int, typer.Option(min=1, max=3600, help="Seconds that an idle connection stays open.")
    ] = 75
    keys: Annotated[
        Path | None,
        typer.Option(help="Key file written by hrm-key; every request then needs a key."),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin send requests, such as https://my.site.",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) for HTTPS.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = (
        None
    )
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow a --host beyond loopback without keys: whoever can connect may use it.",
        ),
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Public host name of a server without keys; may be repeated."),
    ] = None
    log: Annotated[
        Literal["text", "json"], typer.Option(help="Format of log lines on standard error.")
    ] = "text"

    @property
    def url(self) -> str:
        scheme = "https" if self.tls_cert else "http"
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"
