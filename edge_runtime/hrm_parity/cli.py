"""hrm-parity: compares an engine with a reference, puzzle by puzzle and segment by segment.

`--engine unrolled:fp16` compares the unrolled graph with the runtime's loop.
"""

import json

import typer
from rich.console import Console

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_host import command, progress
from hrm_parity import comparison

main = command.Command("hrm-parity")


@main.command(
    groups={"Puzzles": "data puzzles seed", "Findings": "as_json"},
    epilog="Example: "
    "hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku",
)
@command.taking(comparison.ParityOptions)
def parity(options: comparison.ParityOptions) -> None:
    """Compare two engines of a bundle segment by segment; exit with 1 if a limit is exceeded."""
    bundle = Bundle.open(find_bundle(options.bundle))
    with progress.stages_on(Console(stderr=True)) as stages:
        found = comparison.compare_engines(bundle, options, stages)
    if options.as_json:
        print(json.dumps(found.as_json()))
    else:
        comparison.show(bundle, found)
    raise typer.Exit(1 if found.breaks else 0)
