"""hrm-parity: compares an engine with a reference, puzzle by puzzle and segment by segment.

`--engine unrolled:fp16` compares the unrolled graph with the runtime's loop.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hrm_edge_runtime.parity.options import ParityOptions
from hrm_host import command

if TYPE_CHECKING:
    from hrm_edge_runtime.parity.report import ParityReport

main = command.Command("hrm-parity")


@main.command(
    groups={"Puzzles": "data puzzles seed", "Findings": "gates plot write as_json"},
    epilog="Example: "
    "hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku",
)
@command.taking(ParityOptions)
def parity(options: ParityOptions) -> None:
    """Compare two engines of a bundle segment by segment; exit with 1 if a limit is exceeded."""
    from rich.console import Console

    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_edge_runtime.parity import comparison, unrolled
    from hrm_host import progress

    bundle = Bundle.open(find_bundle(options.bundle))
    if options.engine.startswith("unrolled"):
        report = unrolled.compare_loop(bundle, options, progress.Stages())
        print(json.dumps(report.as_json()) if options.as_json else report)
        raise typer.Exit(0 if report.passed else 1)
    with progress.stages_on(Console(stderr=True)) as stages:
        found = comparison.compare_engines(bundle, options, stages)
    if options.plot is not None:
        _write_plot(options.plot, bundle.manifest.name, found.report)
    if options.write:
        comparison.write_comparison(bundle, found)
    if options.as_json:
        print(json.dumps(found.as_json()))
    else:
        comparison.show(bundle, found)
    raise typer.Exit(1 if found.breaks else 0)


def _write_plot(path: Path, name: str, report: "ParityReport") -> None:
    try:
        from hrm_edge_runtime.parity.plot import write_plot
    except ImportError as error:
        remedy = "pip install matplotlib"
        raise ValueError(f"--plot needs {error.name}, which is not installed: {remedy}.") from error
    write_plot(path, f"{name}: {report.candidate} against {report.reference}", report)
