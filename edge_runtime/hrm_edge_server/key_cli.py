"""The command `hrm-key`: makes, lists and removes the keys of `hrm-serve --keys`."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from hrm_edge_runtime.contract.errors import words_for
from hrm_edge_server.auth import (
    Key,
    changed_keys,
    hash_of,
    new_secret,
    read_keys,
)
from hrm_host.command import Command
from hrm_host.system import HANG_UP

about = "Create, list and remove the API keys of a server."
main = Command("hrm-key", no_args_is_help=True, help=about)

File = Annotated[Path, typer.Option(help="The key file; `hrm-serve --keys` reads it.")]


@main.command(epilog="Example: hrm-key add kitchen --file keys --rate 5 --burst 20")
def add(
    label: Annotated[str, typer.Argument(help="Label of the key; metrics and logs show it.")],
    file: File = Path("keys"),
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow the key to add and remove bundles.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(help="Puzzles per second. Default: no limit.")
    ] = None,
    burst: Annotated[int, typer.Option(help="Puzzles allowed in one burst; needs --rate.")] = 10,
) -> None:
    """Make a key, write its hash to the file, and print the key once."""
    secret = new_secret()
    role = "admin" if admin else "user"
    try:
        key = Key(label=label, role=role, sha256=hash_of(secret), rate=rate, burst=burst)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = first["loc"][0]
        raise ValueError(f"{field} cannot be {first['input']!r}: {words_for(first)}.") from None
    with changed_keys(file) as keys:
        if label in {known.label for known in keys}:
            raise ValueError(
                f"{file} already has a key {label!r}: remove it first, or choose another label."
            )
        keys.append(key)
    typer.echo(secret)
    note = f"{file} holds its hash; keep the key, it is shown only here; {_how_to_reload()}"
    typer.echo(f"hrm-key: {note}", err=True)


@main.command("list", epilog="Example: hrm-key list --file keys")
def list_keys(file: File = Path("keys")) -> None:
    """List the keys: label, role and rate."""
    for key in read_keys(file):
        limit = "no limit"
        if key.rate is not None:
            limit = f"{key.rate:g}/s, {key.burst} at once"
        typer.echo(f"{key.label}\t{key.role}\t{limit}")


@main.command(epilog="Example: hrm-key remove kitchen --file keys")
def remove(
    label: Annotated[str, typer.Argument(help="Label of the key.")], file: File = Path("keys")
) -> None:
    """Remove a key from the file."""
    with changed_keys(file) as keys:
        by_label = {key.label: key for key in keys}
        key = by_label.get(label)
        if key is None:
            raise ValueError(f"{file} has no key {label!r}: run hrm-key list --file {file}.")
        if len(keys) == 1:
            raise ValueError(
                f"{label!r} is the last key of {file}; without it nobody could use the server: "
                "add another first."
            )
        keys.remove(key)
    typer.echo(f"hrm-key: removed {label}; {_how_to_reload()}", err=True)


def _how_to_reload() -> str:
    if HANG_UP is None:
        return "restart a running server to read the file"
    return "a running server reads the file again on SIGHUP (systemctl reload hrm-serve)"
