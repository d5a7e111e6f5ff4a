"""The options of hrm-parity."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FILE = Path(__file__).with_name("gates.json")


@dataclass(frozen=True, kw_only=True)
class ParityOptions:
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle directory, or a shipped one's name; else sudoku.")
    ] = None
    engine: Annotated[str, typer.Option(help="The engine under test, ENGINE[:PRECISION].")] = "auto"
    against: Annotated[
        str | None, typer.Option(help="Engine to compare with; else golden traces or cpu:fp32.")
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(help="Compare with this checkpoint in PyTorch (a desktop).")
    ] = None
    data: Annotated[
        Path | None, typer.Option(help="Data set (its test split); else golden or fresh puzzles.")
    ] = None
    puzzles: Annotated[
        int | None, typer.Option(min=1, help="So many puzzles: held out, or fresh.")
    ] = None
    seed: Annotated[int, typer.Option(help="Of the choice of puzzles, or of fresh ones.")] = 1
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Puzzles at a time.")] = 16
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each engine; without it, all cores.")
    ] = None
    gates: Annotated[Path, typer.Option(help="JSON file of what may differ by how much.")] = (
        DEFAULT_FILE
    )
    plot: Annotated[Path | None, typer.Option(help="Write a PNG picture (needs matplotlib).")] = (
        None
    )
    write: Annotated[
        bool, typer.Option("--write", help="Keep the findings in the bundle's parity.json.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def is_golden(self) -> bool:
        return self.data is None and self.puzzles is None
