"""The command `hrm-key`: the keys that `hrm-serve --keys` asks for."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from hrm_edge_runtime.http.auth import (
    Key,
    KeyFileError,
    changed_keys,
    hash_of,
    new_secret,
    read_keys,
)
from hrm_host.command import Command
from hrm_host.system import HANG_UP

main = Command("hrm-key", no_args_is_help=True)

File = Annotated[Path, typer.Option(help="The key file; `hrm-serve --keys` reads it.")]
RELOAD = (
    "start a running server again, so that it reads the file"
    if HANG_UP is None
    else "a running server reads the file again on SIGHUP (systemctl reload hrm-serve)"
)


@main.command(epilog="Example: hrm-key add kitchen --file keys --rate 5 --burst 20")
def add(
    label: Annotated[str, typer.Argument(help="Who holds it; stands in the metrics.")],
    file: File = Path("keys"),
    admin: Annotated[
        bool, typer.Option("--admin", help="May also add and remove bundles.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(help="Puzzles per second; without it, any number.")
    ] = None,
    burst: Annotated[int, typer.Option(help="Puzzles at once (with --rate).")] = 10,
) -> None:
    """Make a key, write its hash to the file and print the key: once, here, and never again."""
    secret = new_secret()
    try:
        key = Key(
            label=label,
            role="admin" if admin else "user",
            sha256=hash_of(secret),
            rate=rate,
            burst=burst,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise KeyFileError(
            f"{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}."
        ) from None
    with changed_keys(file) as keys:
        if label in {other.label for other in keys}:
            raise KeyFileError(
                f"{file} has a key {label!r} already: remove it first, or choose another label."
            )
        keys.append(key)
    typer.echo(secret)
    typer.echo(
        f"hrm-key: {file} holds its hash; keep the key, it is shown only here; {RELOAD}", err=True
    )


@main.command("list", epilog="Example: hrm-key list --file keys")
def list_keys(file: File = Path("keys")) -> None:
    """List the labels with their rights."""
    for key in read_keys(file):
        limit = f"{key.rate:g}/s, {key.burst} at once" if key.rate else "no limit"
        typer.echo(f"{key.label}\t{key.role}\t{limit}")


@main.command(epilog="Example: hrm-key remove kitchen --file keys")
def remove(
    label: Annotated[str, typer.Argument(help="Whose key.")], file: File = Path("keys")
) -> None:
    """Take a key out of the file."""
    with changed_keys(file) as keys:
        gone = [key for key in keys if key.label == label]
        if not gone:
            raise KeyFileError(f"{file} has no key {label!r}: hrm-key list --file {file}.")
        if gone == keys:
            raise KeyFileError(
                f"{label!r} is the last key of {file}, and nobody could ask: add another first."
            )
        keys.remove(gone[0])
    typer.echo(f"hrm-key: removed {label}; {RELOAD}", err=True)
