"""The command `hrm-doctor`: one table of what serving needs here, and of what other rooms add."""

import json
from dataclasses import asdict
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrm_host.board import Host
from hrm_host.doctor import Finding, serving

GROUP = "hrm_edge.doctor"
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def _shipped_bundles() -> Path:
    """Where the serving room keeps its bundles, found without importing it."""
    spec = find_spec("hrm_edge_runtime")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "bundles"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: hrm-doctor --json")
def doctor(
    bundle: Annotated[Path, typer.Option(help="The bundle directory that shall be served.")] = _shipped_bundles(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Look for what stands in the way of serving and training on this machine; nothing is changed.

    Exits with 1 where something must be mended.
    """
    rooms = {entry.name: entry.load()() for entry in entry_points(group=GROUP)}
    found: dict[str, list[Finding]] = {"serve": serving.findings(Host(), serving.look(), bundle), **rooms}
    if as_json:
        rows = [{"part": part, **asdict(finding)} for part, findings in found.items() for finding in findings]
        print(json.dumps(rows, indent=2))
    else:
        table = Table(show_edge=False)
        for column in ("for", "", "what", "found", "what mends it"):
            table.add_column(column, overflow="fold")
        for part, findings in found.items():
            for finding in findings:
                level = Text(finding.level, style=COLOURS[finding.level])
                table.add_row(part, level, *map(Text, (finding.name, finding.text, finding.remedy)))
            table.add_section()
        Console().print(table)
    raise typer.Exit(any(finding.level == "fail" for part in found.values() for finding in part))


def main() -> None:
    """Entry point of `hrm-doctor`."""
    app()
