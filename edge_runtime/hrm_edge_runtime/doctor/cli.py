"""The command `hrm-doctor`: one table of what serving needs here, and of what other rooms add."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hrm_edge_runtime
from hrm_edge_runtime.doctor import jetson, memory, software
from hrm_host.finding import Finding
from hrm_host.machine_files import Files

GROUP = "hrm_edge.doctor"
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
BUNDLES = Path(hrm_edge_runtime.__file__).parent / "bundles"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def main() -> None:
    """Entry point of `hrm-doctor`."""
    app()


@app.command(epilog="Example: hrm-doctor --json")
def doctor(
    bundle: Annotated[Path, typer.Option(help="The bundle directory that shall be served.")] = BUNDLES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Look for what stands in the way of serving and training on this machine; nothing is changed.

    Exits with 1 where something must be mended.
    """
    found = {"serve": serving(Files(), software.look(), bundle), **added()}
    if as_json:
        print(json.dumps(as_rows(found), indent=2))
    else:
        show(found, Console())
    raise typer.Exit(any(finding.level == "fail" for part in found.values() for finding in part))


def serving(files: Files, installed: software.Software, bundle: Path) -> list[Finding]:
    """Everything that serving needs, in the order it is shown."""
    on_jetson = jetson.is_jetson(files)
    left = memory.memory(files, shared_with_gpu=on_jetson)
    folder = next(path for path in (bundle, *bundle.absolute().parents) if path.is_dir())
    return [
        *software.findings(files, installed, on_jetson=on_jetson),
        *jetson.findings(files),
        *([left] if left else []),
        memory.engine_cache(folder),
    ]


def added() -> dict[str, list[Finding]]:
    """What the other rooms look at, by their name."""
    return {entry.name: [Finding(**asdict(found)) for found in entry.load()()] for entry in entry_points(group=GROUP)}


def as_rows(found: Mapping[str, Sequence[Finding]]) -> list[dict[str, str]]:
    return [{"part": part, **asdict(finding)} for part, findings in found.items() for finding in findings]


def show(found: Mapping[str, Iterable[Finding]], console: Console) -> None:
    table = Table(show_edge=False)
    for column in ("for", "", "what", "found", "what mends it"):
        table.add_column(column, overflow="fold")
    for part, findings in found.items():
        for finding in findings:
            level = Text(finding.level, style=COLOURS[finding.level])
            table.add_row(part, level, *map(Text, (finding.name, finding.text, finding.remedy)))
        table.add_section()
    console.print(table)
