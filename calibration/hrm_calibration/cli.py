"""hrm-calibrate: measure on held-out puzzles what a bundle's settings cost and save.

hrm-calibrate halting sudoku.bundle --csv test.csv
hrm-calibrate halting sudoku.bundle --data data/sudoku --markdown
hrm-calibrate int8 sudoku-6x6 --calib sudoku --out sudoku-int8
"""

import json
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import onnx
import typer
from rich.console import Console

from hrm_calibration.halting_curve import report_on, roll_out
from hrm_calibration.int8 import Int8Settings, calibrate, for_cpus
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_host import atomic, command
from hrm_host.progress import stages_on
from hrm_puzzles.data.sources import Questions, find_questions, questions_from_csv, questions_from_data

BundleName = Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle directory, or the name of a shipped one.")]
main = command.Command(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
"""Entry point of `hrm-calibrate`."""


@main.callback()
def commands() -> None:
    """Measure on held-out puzzles what a bundle's settings cost and save."""


@main.command(epilog="Example: hrm-calibrate halting sudoku.bundle --csv test.csv --markdown")
@command.refusing("hrm-calibrate")
def halting(
    bundle_name: BundleName,
    data: Annotated[Path | None, typer.Option(help="Data set whose test split gives the puzzles.")] = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file with source,question,answer,rating instead.")] = None,
    puzzles: Annotated[int | None, typer.Option(min=1, help="A random choice of so many; without it, all.")] = None,
    max_loss: Annotated[float, typer.Option(min=0, max=100, help="Points of exact solves that may be lost.")] = 0.5,
    precision: Annotated[str, typer.Option(help="Which of the bundle's graphs to run.")] = "fp32",
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Puzzles at a time.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine; without it, all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with the whole curve.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Exact solves and mean segments of every halting policy, by difficulty, and the threshold to choose."""
    bundle = Bundle.open(find_bundle(bundle_name))
    questions = _questions(bundle, data, csv)
    questions = questions if puzzles is None else questions.sample(puzzles)
    engine = engine_from_bundle(bundle, precision=precision, num_slots=slots, num_threads=threads)
    with closing(engine), stages_on() as stages:
        limit, progress = bundle.manifest.max_segments, partial(stages.show, "puzzles")
        rollout = roll_out(engine, bundle.puzzle, bundle.puzzle_table, questions, limit, progress=progress)
    report = report_on(rollout, model=bundle.manifest.name, precision=precision, max_loss=max_loss / 100)
    if as_json:
        print(json.dumps(asdict(report)))
    elif as_markdown:
        print(report.markdown())
    else:
        Console().print(report.table())


@main.command(epilog="Example: hrm-calibrate int8 sudoku-6x6 --calib sudoku --out sudoku-int8 --budget 0.5")
@command.refusing("hrm-calibrate")
def int8(
    bundle_name: BundleName,
    calib: Annotated[str, typer.Option(help="sudoku, maze, arc or logistics for fresh puzzles, or a data set or CSV.")],
    out: Annotated[Path, typer.Option(help="Directory for the graphs, the report and its pictures.")],
    data: Annotated[
        Path | None, typer.Option(help="Data set that a name stands for, where puzzles are not made.")
    ] = None,
    puzzles: Annotated[int, typer.Option(min=4, help="Puzzles to record, choose and judge by.")] = 3000,
    budget: Annotated[float, typer.Option(min=0, max=100, help="Points of exact solves that may be lost.")] = 100
    * Int8Settings.budget,
    cache: Annotated[Path | None, typer.Option(help="File that keeps the calibration for the next time.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = 1,
) -> None:
    """The INT8 forms of a bundle's float32 graph, and what they lose."""
    atomic.require_free(out)
    bundle = Bundle.open(find_bundle(bundle_name))
    settings = Int8Settings(budget=budget / 100)
    with stages_on() as stages:
        progress = partial(stages.show, "making puzzles")
        questions = find_questions(calib, bundle.puzzle, count=puzzles, data=data, progress=progress)
        served = ServedGraph(
            graph=onnx.load(bundle.graph_path("fp32")),
            puzzle=bundle.puzzle,
            puzzle_table=bundle.puzzle_table,
            policy=bundle.manifest.halting_policy(),
            num_threads=threads,
        )
        signed, report = calibrate(served, questions, settings=settings, stages=stages, cache=cache)
    with atomic.new_directory(out) as unfinished:
        onnx.save(signed, unfinished / "step.int8.onnx")
        onnx.save(for_cpus(served.graph, report.scales, report.weight_only), unfinished / "step.int8.cpu.onnx")
        report.save(unfinished)
    print(f"{out}: {report.summary()}")


def _questions(bundle: Bundle, data: Path | None, csv: Path | None) -> Questions:
    if csv is not None and data is None:
        questions = questions_from_csv(csv, bundle.puzzle)
    elif data is not None and csv is None:
        questions = questions_from_data(data, bundle.puzzle)
    else:
        raise ValueError("the held-out puzzles come from one place; give either --data or --csv")
    questions.require_ids(bundle.manifest.num_puzzle_ids)
    return questions
