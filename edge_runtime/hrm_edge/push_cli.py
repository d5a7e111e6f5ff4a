"""The command `hrm-push`: brings a bundle to a server, which tries it and serves it."""

from pathlib import Path
from typing import Annotated

import typer

from hrm_edge_runtime.contract.shipped import bundles_from
from hrm_host.command import Command
from hrm_host.text import printable

main = Command("hrm-push")


@main.command(epilog="Example: HRM_API_KEY=hrm_... hrm-push sudoku.bundle http://board:8000")
def push(
    bundle: Annotated[
        str,
        typer.Argument(
            help="A bundle's directory, or a shipped name.", autocompletion=bundles_from
        ),
    ],
    url: Annotated[str, typer.Argument(help="Address of the server, such as http://board:8000.")],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model on the server. Default: the bundle's name."),
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
    """Send a bundle to a server started with --upload-dir; the server tries it and serves it.

    If the server refuses it, its reason is printed and its old model keeps serving.
    """
    from hrm_edge.client import Client
    from hrm_edge.connection import read_key
    from hrm_edge_runtime.contract.archive import Archive
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle

    opened = Bundle.open(find_bundle(bundle))  # rejects links and files that do not match
    archive = Archive(opened.path, name=name)
    key = read_key(key_file)
    # a board may build a TensorRT engine before it answers
    with Client(url, api_key=key, cacert=cacert, timeout_s=3600.0) as client:
        change = client.push(archive)
    verb = "replaced" if change.replaced else "added"
    print(printable(f"{verb} {archive.name} at {url} ({archive.num_bytes / 1e6:.1f} MB)"))
