"""hrm-calibrate: INT8 forms of a bundle's graph, and what they lose."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hrm_calibration import INT8_BUDGET
from hrm_host import command

main = command.Command("hrm-calibrate", extra="export", no_args_is_help=True)

BUNDLE_HELP = "Bundle directory, or a shipped bundle's name."
CALIB_HELP = "sudoku, maze, arc or logistics to generate puzzles, or a data set or CSV file."
OUT_HELP = "Directory to create for the graphs, the report and its pictures."
DATA_HELP = "Data set for the puzzle that --calib names. Default: generated puzzles."
PUZZLES_HELP = "Number of puzzles to record, choose and judge by."
BUDGET_HELP = "Points of exact solves that INT8 may lose."


@main.callback()
def commands() -> None:
    """Measure on held-out puzzles what a bundle's settings cost and save."""


@main.command(
    epilog="Example: hrm-calibrate int8 sudoku-6x6 --calib sudoku --out sudoku-int8 "
    "--int8-budget 0.5"
)
def int8(
    bundle_name: Annotated[str, typer.Argument(metavar="BUNDLE", help=BUNDLE_HELP)],
    calib: Annotated[str, typer.Option(help=CALIB_HELP)],
    out: Annotated[Path, typer.Option(help=OUT_HELP)],
    data: Annotated[Path | None, typer.Option(help=DATA_HELP)] = None,
    puzzles: Annotated[int, typer.Option(min=4, help=PUZZLES_HELP)] = 3000,
    int8_budget: Annotated[float, typer.Option(min=0, max=100, help=BUDGET_HELP)] = 100
    * INT8_BUDGET,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the engine.")] = 1,
) -> None:
    """Make the INT8 forms of a bundle's float32 graph and measure what they lose."""
    import onnx

    from hrm_calibration.int8 import Int8Settings, calibrate, for_cpus
    from hrm_calibration.rollouts import ServedGraph
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_host import atomic
    from hrm_host.progress import stages_on
    from hrm_puzzles.data.sources import find_questions

    atomic.require_free(out)
    bundle = Bundle.open(find_bundle(bundle_name))
    settings = Int8Settings(budget=int8_budget / 100)
    served = ServedGraph(
        graph=onnx.load(bundle.graph_path("fp32")),
        puzzle=bundle.puzzle,
        puzzle_table=bundle.puzzle_table,
        policy=bundle.manifest.halting_policy(),
        num_threads=threads,
    )
    with stages_on() as stages:
        show = partial(stages.show, "making puzzles")
        questions = find_questions(calib, bundle.puzzle, count=puzzles, data=data, progress=show)
        signed, report = calibrate(served, questions, settings=settings, stages=stages)
    narrow = for_cpus(served.graph, report.scales, report.weight_only)
    with atomic.new_directory(out) as unfinished:
        onnx.save(signed, unfinished / "step.int8.onnx")
        onnx.save(narrow, unfinished / "step.int8.cpu.onnx")
        report.save(unfinished)
    print(f"{out}: {report.summary()}")
