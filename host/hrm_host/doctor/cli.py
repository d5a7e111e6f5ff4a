"""`hrm-doctor`: the checks of this room and of the others, as a table or as JSON."""

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrm_host.command import AsJson, Command
from hrm_host.doctor import Finding

COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
COLUMNS = ("for", "", "what", "found", "how to fix it")

main = Command("hrm-doctor")


@main.command(epilog="Example: hrm-doctor --json")
def doctor(
    device: Annotated[
        bool,
        typer.Option("--device", help="Try the GPU with TensorRT step by step and print JSON."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find what prevents serving and training on this machine. Changes nothing.

    Exits with 1 if something must be fixed.
    """
    if device:
        steps = try_devices()
        print(json.dumps(steps, indent=2))
        raise typer.Exit(any(step["level"] != "ok" for step in steps))
    parts = all_findings()
    if as_json:
        rows: list[dict[str, Any]] = []
        for part, findings in parts.items():
            rows += [{"part": part, **finding._asdict()} for finding in findings]
        print(json.dumps(rows, indent=2))
    else:
        print_table(parts)
    failed = [one for findings in parts.values() for one in findings if one.level == "fail"]
    raise typer.Exit(bool(failed))


def all_findings() -> dict[str, Sequence[Finding]]:
    """Findings by part, from every installed check."""
    parts: dict[str, Sequence[Finding]] = {}
    for entry in metadata.entry_points(group="hrm_edge.doctor"):
        check = entry.load()
        parts[entry.name] = check()
    return parts


def try_devices() -> list[dict[str, Any]]:
    """The steps of every device check."""
    steps: list[dict[str, Any]] = []
    for entry in metadata.entry_points(group="hrm_edge.device"):
        check = entry.load()
        steps += check()
    return steps


def print_table(parts: Mapping[str, Sequence[Finding]]) -> None:
    table = Table(show_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for part, findings in parts.items():
        for finding in findings:
            level = Text(finding.level, style=COLORS[finding.level])
            texts = (Text(finding.name), Text(finding.text), Text(finding.remedy))
            table.add_row(part, level, *texts)
        table.add_section()
    Console().print(table)
