"""The options of hrm-parity."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hrm_edge_runtime.contract.completion import bundles_from


@dataclass(frozen=True, kw_only=True)
class ParityOptions:
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="Bundle directory or shipped name. Default: sudoku.", autocompletion=bundles_from
        ),
    ] = None
    engine: Annotated[str, typer.Option(help="Engine to check, ENGINE[:PRECISION].")] = "auto"
    against: Annotated[
        str | None,
        typer.Option(
            help="Reference engine. Default: golden traces, or cpu:fp32 with --data or --puzzles."
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data set whose test split to run. Default: golden or generated puzzles."
        ),
    ] = None
    puzzles: Annotated[int | None, typer.Option(min=1, help="Number of puzzles to run.")] = None
    seed: Annotated[int, typer.Option(help="Seed for choosing or generating puzzles.")] = 1
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Puzzles per batch.")] = 16
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads per engine. Default: all cores.")
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.")
    ] = False

    @property
    def is_golden(self) -> bool:
        return self.data is None and self.puzzles is None
