"""`hrm-data`: build, import, inspect and show data sets."""

import json
import sys
import time
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hrm_host.command import Command, taking
from hrm_host.progress import stages_on
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.data import build as data_build
from hrm_puzzles.data import inspection, sources
from hrm_puzzles.data.datasets import BuiltSet, DatasetError
from hrm_puzzles.puzzle import Puzzle

main = Command(
    "hrm-data",
    help="Build, inspect and show puzzle data sets in the published HRM layout.",
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Argument(help="Directory of a data set.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
OptionalPuzzle = Annotated[
    str | None, typer.Option(help="Name of the puzzle; told from the data set if absent.")
]
PuzzleName = Annotated[
    str, typer.Argument(help=f"Name of the puzzle: {', '.join(registry.names())}.")
]
Out = Annotated[Path, typer.Option(help="Directory to make; it must not exist.")]

MOST_SHOWN = 20  # faults of an import that are listed one by one
MOST_MADE = 10**8  # puzzles, of which Sudokus take 16 GB
MOST_WORKERS = 1024
OF_ALL = (
    "puzzle",
    "out",
    "seed",
    "workers",
    "as_json",
)  # options that say something about any puzzle

Recipe = TypeVar("Recipe", ArcRecipe, data_build.DataRecipe)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build as given; those of the same name go into the recipe."""

    context: typer.Context
    puzzle: PuzzleName
    out: Out
    train: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_MADE, help="Generated training puzzles; 1000 if absent, logistics 960."
        ),
    ] = None
    test: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_MADE,
            help="Generated test puzzles; 200 if absent, maze 1000, logistics 400.",
        ),
    ] = None
    difficulty: Annotated[
        str, typer.Option(help="One, several with commas, or mixed (all but extreme).")
    ] = sources.MIXED
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same data set.")] = 0
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Processes that generate.")
    ] = 1
    source: Annotated[
        str | None, typer.Option(help="hub:ORG/NAME, as hub:sapientinc/sudoku-extreme.")
    ] = None
    csv_train: Annotated[
        Path | None, typer.Option(help="CSV (source,question,answer,rating) to train on.")
    ] = None
    csv_test: Annotated[Path | None, typer.Option(help="The same for the test split.")] = None
    csv_sample: Annotated[
        int | None, typer.Option(min=1, help="So many CSV rows to train on, at random.")
    ] = None
    dataset: Annotated[str, typer.Option(help="arcagi, arcagi2 or a folder of task files.")] = (
        "arcagi"
    )
    tasks: Annotated[
        str | None, typer.Option(help="So many of each split, names, or a file of names.")
    ] = None
    augment: Annotated[int, typer.Option(min=0, help="Variants of each task besides itself.")] = (
        1000
    )
    hold_out_all: Annotated[
        bool,
        typer.Option(
            "--hold-out-all", help="Never train on test pairs, of training tasks neither."
        ),
    ] = False
    keep_colours: Annotated[
        bool,
        typer.Option(
            "--keep-colours",
            help="Variants only turn the grids: relational models exchange colours.",
        ),
    ] = False
    as_json: AsJson = False

    def recipe(self, kind: type[Recipe], **changed: object) -> Recipe:
        given: dict[str, Any] = {**vars(self), **changed}
        return kind(**{field.name: given[field.name] for field in fields(kind)})

    def refuse_idle(self, puzzle: Puzzle) -> None:
        """Refuse what was given but would be without effect."""
        of_arc = [field.name for field in fields(ArcRecipe) if field.name not in OF_ALL]
        of_others = [name for name in self.context.params if name not in (*of_arc, *OF_ALL)]
        for name in of_others if isinstance(puzzle, Arc) else of_arc:
            origin = self.context.get_parameter_source(name)
            if origin is not None and origin.name == "COMMANDLINE":
                raise DatasetError(
                    f"--{name.replace('_', '-')} says nothing about {puzzle.name}; leave it away."
                )


@main.command(
    groups={
        "Generated puzzles": "train test difficulty",
        "Rows of a CSV file": "source csv_train csv_test csv_sample",
        "ARC": "dataset tasks augment hold_out_all keep_colours",
    }
)
@taking(BuildOptions)
def build(options: BuildOptions) -> None:
    """Generate puzzles, read CSV rows or ARC tasks, and write both splits; a build that was stopped continues.

    With CSV rows for a split, none are generated for it unless a number says so.

    Example: hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
    """
    puzzle, out, start = registry.get(options.puzzle), options.out, time.perf_counter()
    options.refuse_idle(puzzle)
    with stages_on() as stages:
        if isinstance(puzzle, Arc):
            progress = partial(stages.show, "tasks")
            built = build_arc(
                options.recipe(ArcRecipe),
                puzzle,
                out,
                num_workers=options.workers,
                progress=progress,
            )
        else:
            recipe, progress = _recipe_of(options, puzzle), partial(stages.show, "puzzles")
            built = data_build.build(recipe, out, num_workers=options.workers, progress=progress)
    seconds = round(time.perf_counter() - start, 2)
    print(
        json.dumps({**asdict(built), "seconds": seconds})
        if options.as_json
        else f"{out}: {_built_text(built)}"
    )


@main.command(name="import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(help='JSON: a list of {"puzzle": ..., "solution": ...}, or one a line.'),
    ],
    puzzle: PuzzleName,
    out: Out,
    split: Annotated[
        str | None, typer.Option(help="train or test, for all; else one class in four is test.")
    ] = None,
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


@main.command()
def inspect(directory: Directory, puzzle: OptionalPuzzle = None, as_json: AsJson = False) -> None:
    """Count, compare the splits, check every label, show an example; exit code 1 when something must not be so.

    Example: hrm-data inspect data/sudoku --json
    """
    report = inspection.inspect(directory, puzzle)
    if as_json:
        print(json.dumps({**asdict(report), "faults": report.faults}))
    else:
        for part in report.splits:
            (example,) = inspection.read_examples(directory, part.split, 0, 1, report.puzzle)
            print(f"the first of {part.split}:\n\n{example}\n")
        print(inspection.report_text(report))
    if report.faults:
        raise typer.Exit(1)


@main.command()
def show(
    directory: Directory,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    index: Annotated[int, typer.Option(min=0, help="Which example, from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="So many, each of another group.")] = 1,
    puzzle: OptionalPuzzle = None,
) -> None:
    """Print examples as boards, the question and then the label.

    Example: hrm-data show data/sudoku --split test --index 3
    """
    print("\n\n".join(inspection.read_examples(directory, split, index, count, puzzle)))


def _recipe_of(options: BuildOptions, puzzle: Puzzle) -> data_build.DataRecipe:
    files = options.csv_train, options.csv_test
    if options.source is not None:
        files = sources.downloaded(options.source)
    changed: dict[str, object] = {}
    asked, usual = (options.train, options.test), data_build.usual_counts(puzzle)
    for split, file, count, by_default in zip(("train", "test"), files, asked, usual, strict=True):
        changed[f"csv_{split}"] = file and str(file)
        changed[f"num_{split}"] = (0 if file else by_default) if count is None else count
    return options.recipe(data_build.DataRecipe, **changed)


def _built_text(built: BuiltSet) -> str:
    counts = f"{built.num_train} training and {built.num_test} test examples"
    lines = [f"{counts}, sha256 {built.fingerprint}"]
    if built.num_tasks is not None:
        lines.append(
            f"{built.num_tasks} tasks in {built.num_puzzles} variants, {built.num_left_out} tasks too large."
        )
    elif built.num_left_out:
        lines.append(
            f"{built.num_left_out} training questions left out: symmetric copies of test questions."
        )
    return "\n".join(lines)
