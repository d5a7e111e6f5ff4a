"""`hrm-data`: build, import, inspect and show data sets.

hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
hrm-data build arc --out data/arc --augment 1000 --workers 4
hrm-data import boards.ndjson sudoku --out data/boards
hrm-data inspect data/sudoku
hrm-data show data/arc --count 6 --png arc.png
"""

import json
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hrm_host.progress import stages_on
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcBuild, ArcRecipe, build_arc
from hrm_puzzles.data import build as data_build
from hrm_puzzles.data import examples, inspection, sources
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Puzzle, PuzzleError

app = typer.Typer(help="Build, inspect and show puzzle data sets in the published HRM layout.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Directory of a data set.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
OptionalPuzzle = Annotated[str | None, typer.Option(help="Name of the puzzle; told from the data set if absent.")]
PuzzleName = Annotated[str, typer.Argument(help=f"Name of the puzzle: {', '.join(registry.names())}.")]
Out = Annotated[Path, typer.Option(help="Directory to make; it must not exist.")]

MOST_SHOWN = 20  # faults of an import that are listed one by one
OF_ARC = ("dataset", "tasks", "augment", "max_side", "hold_out_all")
OF_OTHERS = (
    *("train", "test", "difficulty", "copies"),
    *("source", "csv_train", "csv_test", "csv_sample", "least_rating", "greatest_rating"),
)


def main() -> None:
    """Run the command; what a person can put right ends with one sentence and exit code 2."""
    try:
        app()
    except (DatasetError, PuzzleError, OSError) as error:
        print(f"hrm-data: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def build(
    context: typer.Context,
    puzzle: PuzzleName,
    out: Out,
    train: Annotated[
        int | None, typer.Option(min=0, help="Generated training puzzles; 1000 if absent, logistics 960.")
    ] = None,
    test: Annotated[
        int | None, typer.Option(min=0, help="Generated test puzzles; 200 if absent, maze 1000, logistics 400.")
    ] = None,
    difficulty: Annotated[
        str, typer.Option(help="One, several with commas, or mixed (all but extreme).")
    ] = sources.MIXED,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same data set.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that generate.")] = 1,
    copies: Annotated[int, typer.Option(min=0, help="Random symmetric copies of each training puzzle.")] = 0,
    source: Annotated[str | None, typer.Option(help="hub:ORG/NAME, as hub:sapientinc/sudoku-extreme.")] = None,
    csv_train: Annotated[Path | None, typer.Option(help="CSV (source,question,answer,rating) to train on.")] = None,
    csv_test: Annotated[Path | None, typer.Option(help="The same for the test split.")] = None,
    csv_sample: Annotated[int | None, typer.Option(min=1, help="So many CSV rows to train on, at random.")] = None,
    least_rating: Annotated[int, typer.Option(min=0, help="Of CSV rows, those rated so or higher.")] = 0,
    greatest_rating: Annotated[
        int | None, typer.Option(min=0, help="Of CSV rows, take those rated so or lower.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="ARC: arcagi, arcagi2, a folder or a challenges file.")] = "arcagi",
    tasks: Annotated[str | None, typer.Option(help="ARC: so many of each split, names, or a file of names.")] = None,
    augment: Annotated[int, typer.Option(min=0, help="ARC: variants of each task besides itself.")] = 1000,
    max_side: Annotated[int | None, typer.Option(min=1, help="ARC: leave out tasks with larger grids.")] = None,
    hold_out_all: Annotated[
        bool, typer.Option("--hold-out-all", help="ARC: never train on test pairs, of training tasks neither.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Generate puzzles, read CSV rows or ARC tasks, and write both splits; a build that was stopped continues.

    With CSV rows for a split, none are generated for it unless a number says so.

    Example: hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
    """
    kind = registry.get(puzzle)
    _refuse_options(context, kind)
    start = time.perf_counter()
    if isinstance(kind, Arc):
        arc_recipe = ArcRecipe(
            puzzle=puzzle,
            dataset=dataset,
            tasks=tasks,
            augment=augment,
            max_side=max_side,
            hold_out_all=hold_out_all,
            seed=seed,
        )
        with stages_on() as stages:
            built = build_arc(arc_recipe, kind, out, num_workers=workers, progress=partial(stages.show, "tasks"))
    else:
        csv_files = sources.downloaded(source) if source is not None else (csv_train, csv_test)
        usual = (0 if file else count for file, count in zip(csv_files, data_build.usual_counts(kind), strict=True))
        num_train, num_test = (n if asked is None else asked for asked, n in zip((train, test), usual, strict=True))
        recipe = data_build.DataRecipe(
            puzzle=puzzle,
            num_train=num_train,
            num_test=num_test,
            seed=seed,
            difficulty=difficulty,
            copies=copies,
            csv_train=None if csv_files[0] is None else str(csv_files[0]),
            csv_test=None if csv_files[1] is None else str(csv_files[1]),
            csv_sample=csv_sample,
            least_rating=least_rating,
            greatest_rating=greatest_rating,
        )
        with stages_on() as stages:
            built = data_build.build(recipe, out, num_workers=workers, progress=partial(stages.show, "puzzles"))
    cost = _cost_of(built.num_train + built.num_test, time.perf_counter() - start)
    print(json.dumps({**asdict(built), **cost}) if as_json else f"{out}: {_built_text(built)}")


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help='JSON: a list of {"puzzle": ..., "solution": ...}, or one a line.')],
    puzzle: PuzzleName,
    out: Out,
    split: Annotated[str | None, typer.Option(help="train or test, for all; else one class in four is test.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a data set of exported puzzles; exit code 1 when some had to be left out.

    Example: hrm-data import boards.ndjson sudoku --out data/boards
    """
    if split not in (None, "train", "test"):
        raise DatasetError(f"--split is {split!r}; write train or test, or leave it away.")
    imported = data_build.import_file(file, registry.get(puzzle), out, split=split)
    if as_json:
        print(json.dumps(asdict(imported)))
    else:
        print(f"{out}: {imported.num_train} training and {imported.num_test} test examples")
    for fault in imported.faults[:MOST_SHOWN]:
        print(fault, file=sys.stderr)
    if imported.faults:
        print(f"{len(imported.faults)} puzzles were left out.", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def inspect(directory: Directory, puzzle: OptionalPuzzle = None, as_json: AsJson = False) -> None:
    """Count, compare the splits, check every label, show an example; exit code 1 when something must not be so.

    Example: hrm-data inspect data/sudoku --json
    """
    report = inspection.inspect(directory, puzzle)
    if as_json:
        print(json.dumps({**asdict(report), "faults": report.faults}))
    else:
        for part in report.splits:
            example = examples.read_examples(directory, part.split, 0, 1, report.puzzle)[0]
            print(f"the first of {part.split}:\n\n{example.text()}\n")
        print(inspection.report_text(report))
    if report.faults:
        raise typer.Exit(1)


@app.command()
def show(
    directory: Directory,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    index: Annotated[int, typer.Option(min=0, help="Which example, from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="So many, each of another group.")] = 1,
    puzzle: OptionalPuzzle = None,
    png: Annotated[
        Path | None, typer.Option(help="Write a picture instead: questions and answers side by side.")
    ] = None,
) -> None:
    """Print examples as boards, the question and then the label, or draw them.

    Example: hrm-data show data/sudoku --split test --index 3
    """
    found = examples.read_examples(directory, split, index, count, puzzle)
    if png is not None:
        examples.save_sheet(png, found)
        return
    print("\n\n".join(example.text() for example in found))


def _refuse_options(context: typer.Context, puzzle: Puzzle) -> None:
    """What was given but would be without effect."""
    idle = OF_OTHERS if isinstance(puzzle, Arc) else OF_ARC
    origins = {name: context.get_parameter_source(name) for name in idle}
    given = [name for name, source in origins.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise DatasetError(f"{option} says nothing about {puzzle.name}; leave it away.")


def _built_text(built: data_build.BuildResult | ArcBuild) -> str:
    counts = f"{built.num_train} training and {built.num_test} test examples"
    lines = [f"{counts}, sha256 {built.fingerprint}"]
    if isinstance(built, ArcBuild):
        lines.append(f"{built.num_tasks} tasks in {built.num_puzzles} variants, {built.num_left_out} tasks too large.")
    elif built.num_left_out:
        lines.append(f"{built.num_left_out} training questions left out: symmetric copies of test questions.")
    return "\n".join(lines)


def _cost_of(num_examples: int, seconds: float) -> dict[str, float]:
    """What a build took: time, and where the system tells it the CPU time of this process and its workers.

    `peak_rss_bytes` is the greatest resident size that any one of them had.
    """
    cost = {"seconds": round(seconds, 2), "examples_per_second": round(num_examples / seconds, 1)}
    try:
        import resource
    except ImportError:  # Windows
        return cost
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 1 if sys.platform == "darwin" else 1024
    cpu_seconds = round(sum(usage.ru_utime + usage.ru_stime for usage in used), 2)
    return {**cost, "cpu_seconds": cpu_seconds, "peak_rss_bytes": unit * max(usage.ru_maxrss for usage in used)}
