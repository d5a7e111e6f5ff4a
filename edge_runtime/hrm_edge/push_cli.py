"""The command `hrm-push`: brings a bundle to one server or a fleet; each tries it and serves it."""

import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm_edge_runtime.contract.errors import Error
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_host.command import Command
from hrm_host.reading import printable, text_of

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.archive import Archive

MAX_AT_ONCE = 16  # boards that try the bundle at the same time
main = Command("hrm-push")


@main.command(epilog="Example: HRM_API_KEY=hrm_... hrm-push sudoku.bundle http://board:8000")
def push(
    bundle: Annotated[
        str,
        typer.Argument(help="A bundle's directory, or a shipped name."),
    ],
    url: Annotated[
        str | None, typer.Argument(help="Address of the server, such as http://board:8000.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model on the server. Default: the bundle's name."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            help="All boards, in place of URL: a file with a URL on each line, or a DNS name "
            "with an address for each board, such as boards.lan:8000.",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with an admin's key. Default: the variable HRM_API_KEY."),
    ] = None,
    cacert: Annotated[
        Path | None,
        typer.Option(help="File with the server's certificate. Default: SSL_CERT_FILE."),
    ] = None,
) -> None:
    """Send a bundle to servers started with --upload-dir; each tries it and serves it.

    If a server refuses it, its reason is printed and its old model keeps serving. With --fleet the
    others still get it. It is safe to run again.
    """
    from hrm_edge.connection import read_key
    from hrm_edge_runtime.contract.archive import Archive

    if (url is None) == (fleet is None):
        raise ValueError("hrm-push takes one URL or --fleet; pass one of them")
    opened = open_bundle(bundle)  # rejects links and files that do not match
    archive = Archive(opened.path, name=name)
    push_to = partial(push_archive, archive, api_key=read_key(key_file), cacert=cacert)
    if fleet is None:
        assert url is not None
        push_to(url)
    else:
        push_to_all(boards_of(fleet), push_to)


def push_archive(archive: "Archive", board: str, **options: Any) -> None:
    from hrm_edge.client import Client

    # a board may build a TensorRT engine before it answers
    with Client(board, timeout_s=3600.0, **options) as client:
        change = client.push(archive)
    verb = "replaced" if change.replaced else "added"
    print(printable(f"{verb} {archive.name} at {board} ({archive.num_bytes / 1e6:.1f} MB)"))


def boards_of(fleet: str) -> list[str]:
    """The URLs of a fleet: the lines of a file, or the addresses of `NAME:PORT`."""
    file = Path(fleet)
    if file.is_file():
        lines = [line.strip() for line in text_of(file).splitlines()]
        boards = [line for line in lines if line and not line.startswith("#")]
        if not boards:
            raise ValueError(f"{file} names no board; write one URL on each line")
        return list(dict.fromkeys(boards))
    name, _, port = fleet.rpartition(":")
    if not name or not port.isdecimal():
        raise ValueError(
            f"--fleet is {fleet!r}, which is not a file; pass a file with a URL on each line, or a "
            "DNS name with a port, such as boards.lan:8000"
        )
    try:
        found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--fleet names {name!r}, which has no address ({error}); correct the name, or pass a "
            "file with a URL on each line"
        ) from error
    boards: list[str] = []
    for *_, address in found:
        host = str(address[0])
        if ":" in host:
            host = f"[{host}]"
        boards.append(f"http://{host}:{port}")
    return list(dict.fromkeys(boards))


def push_to_all(boards: list[str], push_to: Callable[[str], None]) -> None:
    """Push to all boards at once and print each failure; UnreachableError if there was one."""
    from hrm_edge.errors import UnreachableError

    num_failed = 0
    with ThreadPoolExecutor(min(len(boards), MAX_AT_ONCE)) as pool:
        pushes = [pool.submit(push_to, board) for board in boards]
        for board, one in zip(boards, pushes, strict=True):
            try:
                one.result()
            except (Error, OSError, ValueError) as error:
                num_failed += 1
                print(printable(f"{board}: {error}"), file=sys.stderr)
    if num_failed:
        raise UnreachableError(
            f"{num_failed} of {len(boards)} boards did not take the bundle; remove the causes "
            "above and run the command again"
        )
