"""hrm-parity: does an engine say what it should, puzzle by puzzle and segment by segment?

`--engine unrolled:fp16` compares the whole loop in one graph with the runtime's loop.
"""

import json

import typer

from hrm_edge_runtime.parity.options import ParityOptions
from hrm_host import command

main = command.Command("hrm-parity")


@main.command(
    groups={"Puzzles": "data puzzles seed", "Findings": "gates html write as_json"},
    epilog="Example: hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku",
)
@command.taking(ParityOptions)
def parity(options: ParityOptions) -> None:
    """Compare two engines of a bundle; exits with 1 and the first thing that broke where a gate does not hold."""
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
    if options.html is not None:
        try:
            from hrm_edge_runtime.parity.html import page_of
        except ImportError as error:
            raise ValueError(f"a page needs {error.name}, which is not installed: pip install matplotlib.") from error
        options.html.write_text(page_of(bundle.manifest.name, found), encoding="utf-8")
    if options.write:
        comparison.write_comparison(bundle, found)
    if options.as_json:
        print(json.dumps(found.as_json()))
    else:
        comparison.show(bundle, found)
    raise typer.Exit(1 if found.breaks else 0)
