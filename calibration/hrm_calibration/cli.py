"""hrm-calibrate: INT8 forms of a bundle's graph, and what they lose."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hrm_calibration import INT8_BUDGET
from hrm_host import command

main = command.Command("hrm-calibrate", extra="export", no_args_is_help=True)


@main.callback()
def commands() -> None:
    """Measure on held-out puzzles what a bundle's settings cost and save."""


@main.command(
    epilog="Example: hrm-calibrate int8 sudoku-6x6 --calib sudoku --out sudoku-int8 "
    "--int8-budget 0.5"
)
def int8(
    bundle_name: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Bundle directory, or a shipped bundle's name.")
    ],
    calib: Annotated[
        str,
        typer.Option(
            help="sudoku, maze, arc or logistics to generate puzzles, or a data set or CSV file."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Directory to create for the graphs and calibration.json.")
    ],
    puzzles: Annotated[
        int,
        typer.Option(min=8, help="Number of puzzles: half of them calibrate, the others judge."),
    ] = 3000,
    int8_budget: Annotated[
        float, typer.Option(min=0, max=100, help="Points of exact solves that INT8 may lose.")
    ] = 100 * INT8_BUDGET,
) -> None:
    """Make the INT8 forms of a bundle's float32 graph and measure what they lose."""
    import numpy as np
    import onnx

    from hrm_calibration.int8 import calibrate
    from hrm_calibration.rollouts import ServedGraph
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_host import atomic, machine
    from hrm_host.progress import stages_on
    from hrm_parity.outcomes import paired
    from hrm_puzzles.data.sources import find_questions

    atomic.require_free(out)
    bundle = Bundle.open(find_bundle(bundle_name))
    served = ServedGraph(
        graph=onnx.load(bundle.graph_path("fp32")),
        puzzle=bundle.puzzle,
        puzzle_table=bundle.puzzle_table,
        policy=bundle.manifest.halting_policy(),
        num_threads=machine.num_cores(),
    )
    with stages_on() as stages:
        show = partial(stages.show, "making puzzles")
        questions = find_questions(calib, bundle.puzzle, count=puzzles, progress=show)
        questions.require_ids(len(bundle.puzzle_table))
        order_N = np.random.default_rng(0).permutation(len(questions))
        sample_N, others_N = np.array_split(order_N, 2)
        sample = questions.at(sample_N)
        others = questions.at(others_N)
        found = calibrate(served, sample, budget=int8_budget / 100, stages=stages)
        narrow = found.for_cpus(served.graph)
        float32 = served.outcomes(others, progress=partial(stages.show, "judging float32"))
        rounded = served.outcomes(
            others, other=narrow, progress=partial(stages.show, "judging int8")
        )
    lost = paired(float32.exact_N, rounded.exact_N)
    with atomic.new_directory(out) as unfinished:
        onnx.save(found.signed(served.graph), unfinished / "step.int8.onnx")
        onnx.save(narrow, unfinished / "step.int8.cpu.onnx")
        report = {**found.as_json(), "judged": asdict(lost)}
        text = json.dumps(report, indent=1)
        atomic.write_text(unfinished / "calibration.json", text + "\n")
    num_kept = len(found.weight_only)
    print(
        f"{out}: {num_kept} matrices weight-only; exact solves {100 * lost.ours:.1f} % against "
        f"{100 * lost.reference:.1f} % in float32 on {lost.num_puzzles} other puzzles, a loss of "
        f"{100 * lost.loss:.2f} points ({100 * lost.low:.2f} to {100 * lost.high:.2f} at 95 %)"
    )
