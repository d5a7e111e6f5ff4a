"""hrm-doctor: look at this machine, say what is wrong and what mends it; exit code 1 where something must be mended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrm_train.doctor import gpu, kernel_log, software, system
from hrm_train.doctor.probe import Finding, Probe

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def examine(probe: Probe, installed: software.Software) -> list[Finding]:
    """Everything the doctor looks at, in the order it is shown."""
    return [
        *software.findings(probe, installed),
        *gpu.findings(probe),
        *kernel_log.findings(probe),
        *system.findings(probe),
    ]


def show(findings: Iterable[Finding], console: Console) -> None:
    table = Table(show_edge=False)
    for column in ("", "what", "found", "what mends it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        level = Text(finding.level, style=COLOURS[finding.level])
        table.add_row(level, *map(Text, (finding.name, finding.text, finding.remedy)))
    console.print(table)


@app.command(epilog="Example: hrm-doctor --json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False) -> None:
    """Look for what stands in the way of training on this machine; nothing is changed."""
    found = examine(Probe(), software.look())
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        show(found, Console())
    raise typer.Exit(any(finding.level == "fail" for finding in found))


def main() -> None:
    """Runs the command."""
    app()
