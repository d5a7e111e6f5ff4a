"""`hrm-data`: build, import and inspect data sets, and check puzzles."""

import json
import sys
import time
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from hrm_host.atomic import unfinished
from hrm_host.command import AsJson, Columns, Command, taking
from hrm_host.progress import stages_on
from hrm_host.reading import counted
from hrm_puzzles import conformance, registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.data import build as data_build
from hrm_puzzles.data import inspection, sources
from hrm_puzzles.data.datasets import CHUNKS, BuiltSet, DatasetError
from hrm_puzzles.puzzle import Puzzle

main = Command(
    "hrm-data",
    help="Build and inspect puzzle data sets in the published HRM layout; check puzzles.",
    no_args_is_help=True,
)

PuzzleName = Annotated[
    str,
    typer.Argument(help=f"Name of the puzzle: {', '.join(registry.names())}."),
]
Out = Annotated[Path, typer.Option(help="Directory to create; it must not exist.")]

MOST_SHOWN = 20  # maximum number of faults of an import that are printed
MOST_MADE = 10**8  # maximum puzzles of a build; this many Sudokus take 16 GB
OF_ALL = ("puzzle", "out", "seed", "workers", "as_json")  # options that apply to every puzzle

Recipe = TypeVar("Recipe", ArcRecipe, data_build.DataRecipe)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build. A recipe takes the options that have the names of its fields."""

    context: typer.Context
    puzzle: PuzzleName
    out: Out
    train: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_MADE,
            help="Number of training puzzles to generate. Default: 1000, logistics 960.",
        ),
    ] = None
    test: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_MADE,
            help="Number of test puzzles to generate. Default: 200, maze 1000, logistics 400.",
        ),
    ] = None
    difficulty: Annotated[
        str,
        typer.Option(help="One, several separated by commas, or mixed (all except extreme)."),
    ] = sources.MIXED
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed; the same seed gives the same data set.")
    ] = 0
    workers: Annotated[
        int,
        typer.Option(min=1, max=1024, help="Processes that generate puzzles."),
    ] = 1
    source: Annotated[
        str | None,
        typer.Option(help="Source on the Hugging Face hub, such as hub:sapientinc/sudoku-extreme."),
    ] = None
    csv_train: Annotated[
        Path | None,
        typer.Option(help="File for training: a table, JSON, text, .npy or .npz."),
    ] = None
    csv_test: Annotated[Path | None, typer.Option(help="File for the test split.")] = None
    csv_sample: Annotated[
        int | None,
        typer.Option(min=1, help="Train on this many random CSV rows."),
    ] = None
    columns: Columns = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Omit bad rows of the files, and report them.")
    ] = False
    dataset: Annotated[
        str,
        typer.Option(help="arcagi, arcagi2, a folder of task files, or Kaggle's challenges."),
    ] = "arcagi"
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks to use: a number per split, comma-separated names, or a file of names."
        ),
    ] = None
    augment: Annotated[
        int,
        typer.Option(min=0, max=10**6, help="Variants of each task, besides the task itself."),
    ] = 1000
    hold_out_all: Annotated[
        bool,
        typer.Option("--hold-out-all", help="Hold out the test pairs of all tasks."),
    ] = False
    keep_colors: Annotated[
        bool,
        typer.Option(
            "--keep-colors",
            help="Only turn and mirror grids; for relational models, which treat colors alike.",
        ),
    ] = False
    more: Annotated[
        Path | None,
        typer.Option(help="Further examples of the tasks: RE-ARC's folder or zip, or JSON."),
    ] = None
    more_license: Annotated[
        Path | None,
        typer.Option(help="File with the license of --more."),
    ] = None
    as_json: AsJson = False

    def recipe(self, kind: type[Recipe], **changed: object) -> Recipe:
        given: dict[str, Any] = {**vars(self), **changed}
        values = {field.name: given[field.name] for field in fields(kind)}
        return kind(**values)

    def require_effect(self, puzzle: Puzzle) -> None:
        """Raise DatasetError for an option that does not apply to the puzzle."""
        of_arc = [field.name for field in fields(ArcRecipe) if field.name not in OF_ALL]
        idle = of_arc
        if isinstance(puzzle, Arc):
            idle = [name for name in self.context.params if name not in (*of_arc, *OF_ALL)]
        for name in idle:
            origin = self.context.get_parameter_source(name)
            if origin is not None and origin.name == "COMMANDLINE":
                option = f"--{name.replace('_', '-')}"
                raise DatasetError(f"{option} does not apply to {puzzle.name}; omit it.")


@main.command(
    groups={
        "Generated puzzles": "train test difficulty",
        "Rows of files": "source csv_train csv_test csv_sample columns skip_bad",
        "ARC": "dataset tasks augment hold_out_all keep_colors more more_license",
    }
)
@taking(BuildOptions)
def build(options: BuildOptions) -> None:
    """Generate puzzles, read CSV rows or ARC tasks, and write both splits.

    A stopped build continues. If a split has CSV rows, puzzles are generated for it only if their
    number is passed.

    Example: hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
    """
    began_s = time.perf_counter()
    puzzle = registry.get(options.puzzle)
    options.require_effect(puzzle)
    _report_leftovers(options.out)
    built = _built(options, puzzle)
    seconds = round(time.perf_counter() - began_s, 2)
    if options.as_json:
        print(json.dumps({**asdict(built), "seconds": seconds}))
    else:
        print(f"{options.out}: {_built_text(built)}")


def _report(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _report_leftovers(out: Path) -> None:
    """List what is left on disk by killed builds of this data set."""
    left = dict.fromkeys(unfinished(out), "remove it, unless that build still runs")
    remedy = "the same command continues it; otherwise remove it"
    left.update(dict.fromkeys(unfinished(out, CHUNKS), remedy))
    for path, advice in left.items():
        _report(f"{path} is left from an interrupted build: {advice}")


def _built(options: BuildOptions, puzzle: Puzzle) -> BuiltSet:
    if isinstance(puzzle, Arc):
        tasks = options.recipe(ArcRecipe)
        with stages_on() as stages:
            progress = partial(stages.show, "tasks")
            num_workers = options.workers
            return build_arc(tasks, puzzle, options.out, num_workers=num_workers, progress=progress)
    recipe = _recipe_of(options, puzzle)
    with stages_on() as stages:
        return data_build.build(
            recipe,
            options.out,
            num_workers=options.workers,
            progress=partial(stages.show, "puzzles"),
            skip_bad=options.skip_bad,
            say=_report,
        )


@main.command(name="import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(help="Puzzles with answers: JSON, a table, text, .npy or .npz."),
    ],
    puzzle: PuzzleName,
    out: Out,
    split: Annotated[
        Literal["train", "test"] | None,
        typer.Option(help="train or test. Default: a quarter of the puzzles goes to test."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a data set from exported puzzles. Exits with 1 if it rejects some of them.

    Example: hrm-data import boards.ndjson sudoku --out data/boards
    """
    kind = registry.get(puzzle)
    imported = data_build.import_file(file, kind, out, split=split, say=_report)
    if as_json:
        print(json.dumps(asdict(imported)))
    else:
        counts = f"{imported.num_train} training and {imported.num_test} test examples"
        print(f"{out}: {counts}")
    for fault in imported.faults[:MOST_SHOWN]:
        _report(fault)
    if imported.faults:
        _report(f"left out: {counted(len(imported.faults), 'puzzle')}.")
        raise typer.Exit(1)


@main.command()
def inspect(
    directory: Annotated[Path, typer.Argument(help="Directory of a data set.")],
    puzzle: Annotated[
        str | None,
        typer.Option(help="Name of the puzzle; by default that of the data set's recipe."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a data set: sizes, every label, overlap of the splits; show a wrong example, if any.

    The exit code is 1 if the data set has faults.

    Example: hrm-data inspect data/sudoku --json
    """
    report = inspection.inspect(directory, puzzle)
    if as_json:
        print(json.dumps({**asdict(report), "faults": report.faults}))
    else:
        for part in report.splits:
            print(f"{inspection.example_text(directory, part, report.puzzle)}\n")
        print(inspection.report_text(report))
    if report.faults:
        raise typer.Exit(1)


@main.command()
def check(puzzle: PuzzleName) -> None:
    """Check that a puzzle keeps every law, for puzzles of your own. Exits with 1 if it breaks one.

    Example: hrm-data check latin-5x5
    """
    found = registry.get(puzzle)
    is_broken = False
    for law, fault in conformance.findings(found):
        if fault is None:
            print(f"kept    {law}")
        else:
            is_broken = True
            print(f"BROKEN  {law} Found: {fault}")
    if is_broken:
        raise typer.Exit(1)


def _recipe_of(options: BuildOptions, puzzle: Puzzle) -> data_build.DataRecipe:
    """The recipe. A split with a file gets generated puzzles only if their number is passed."""
    csv_train = options.csv_train
    csv_test = options.csv_test
    if options.source is not None:
        csv_train, csv_test = sources.downloaded(options.source)
    usual_train, usual_test = data_build.usual_counts(puzzle)
    num_train = usual_train if csv_train is None else 0
    num_test = usual_test if csv_test is None else 0
    return options.recipe(
        data_build.DataRecipe,
        csv_train=csv_train,
        csv_test=csv_test,
        num_train=num_train if options.train is None else options.train,
        num_test=num_test if options.test is None else options.test,
    )


def _built_text(built: BuiltSet) -> str:
    counts = f"{built.num_train} training and {built.num_test} test examples"
    text = f"{counts}, sha256 {built.fingerprint}"
    if built.num_tasks is not None and built.num_puzzles is not None:
        tasks = f"{counted(built.num_tasks, 'task')} in {counted(built.num_puzzles, 'variant')}"
        text = f"{text}\n{tasks}, {counted(built.num_left_out, 'task')} too large."
        if built.num_more is None:
            return text
        left_out = f"{built.num_more_left_out} left out: too large, or copies of test inputs"
        return f"{text}\n{counted(built.num_more, 'further example')}; {left_out}."
    if built.num_left_out:
        left_out = f"{counted(built.num_left_out, 'training question')} left out"
        return f"{text}\n{left_out}: symmetric copies of test questions."
    return text
