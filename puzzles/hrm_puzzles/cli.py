"""`hrm-data`: build, inspect and show data sets.

hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
hrm-data inspect data/sudoku
hrm-data show data/sudoku --split test --index 0
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hrm_puzzles import registry
from hrm_puzzles.build import Recipe
from hrm_puzzles.build import build as build_dataset
from hrm_puzzles.datasets import DatasetError, open_split
from hrm_puzzles.generation import MIXED
from hrm_puzzles.inspection import Report, SplitReport, puzzle_of
from hrm_puzzles.inspection import inspect as inspect_dataset
from hrm_puzzles.puzzle import PuzzleError

app = typer.Typer(help="Build, inspect and show puzzle data sets in the published HRM layout.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Directory of a data set.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def main() -> None:
    """Run the command; what a person can put right ends with one sentence and exit code 2."""
    try:
        app()
    except (DatasetError, PuzzleError, OSError) as error:
        print(f"hrm-data: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def build(
    puzzle: Annotated[str, typer.Argument(help="Name of the puzzle: sudoku, sudoku-6x6, sudoku-4x4.")],
    out: Annotated[Path, typer.Option(help="Directory to make; it must not exist.")],
    train: Annotated[int, typer.Option(min=0, help="Generated training puzzles.")] = 1000,
    test: Annotated[int, typer.Option(min=0, help="Generated test puzzles.")] = 200,
    difficulty: Annotated[str, typer.Option(help="One, several with commas, or mixed (all but extreme).")] = MIXED,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same data set.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that generate.")] = 1,
    copies: Annotated[int, typer.Option(min=0, help="Random symmetric copies of each training puzzle.")] = 0,
    csv_train: Annotated[Path | None, typer.Option(help="CSV (source,question,answer,rating) to train on.")] = None,
    csv_test: Annotated[Path | None, typer.Option(help="The same for the test split.")] = None,
    least_rating: Annotated[int, typer.Option(min=0, help="Of CSV rows, those rated so or higher.")] = 0,
    greatest_rating: Annotated[
        int | None, typer.Option(min=0, help="Of CSV rows, take those rated so or lower.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate puzzles, add CSV rows, and write both splits; a build that was stopped continues.

    Example: hrm-data build sudoku --out data/sudoku --train 20000 --test 1000 --workers 4
    """
    recipe = Recipe(
        puzzle=puzzle,
        num_train=train,
        num_test=test,
        seed=seed,
        difficulty=difficulty,
        copies=copies,
        csv_train=None if csv_train is None else str(csv_train),
        csv_test=None if csv_test is None else str(csv_test),
        least_rating=least_rating,
        greatest_rating=greatest_rating,
    )
    with _progress() as progress:
        built = build_dataset(recipe, out, num_workers=workers, progress=progress)
    if as_json:
        print(json.dumps(asdict(built)))
        return
    print(f"{out}: {built.num_train} training and {built.num_test} test examples, sha256 {built.fingerprint}")
    if built.num_left_out:
        print(f"{built.num_left_out} training questions left out: symmetric copies of test questions.")


@app.command()
def inspect(
    directory: Directory,
    puzzle: Annotated[str | None, typer.Option(help="Name of the puzzle; told from the sizes if absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count, compare the splits and check every label; exit code 1 when something must not be so.

    Example: hrm-data inspect data/sudoku --json
    """
    report = inspect_dataset(directory, puzzle)
    print(json.dumps({**asdict(report), "faults": report.faults}) if as_json else _text(report))
    if report.faults:
        raise typer.Exit(1)


@app.command()
def show(
    directory: Directory,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    index: Annotated[int, typer.Option(min=0, help="Which example, from 0.")] = 0,
    puzzle: Annotated[str | None, typer.Option(help="Name of the puzzle; told from the sizes if absent.")] = None,
) -> None:
    """Print one example as a board: the question, then the label with the givens in brackets.

    Example: hrm-data show data/sudoku --split test --index 3
    """
    examples = open_split(directory, split)
    if index >= len(examples):
        raise DatasetError(f"{split} has {len(examples)} examples, so there is no index {index}; give a smaller one.")
    kind = registry.get(puzzle) if puzzle else puzzle_of(examples.meta)
    question = kind.decode(examples.inputs_NT[index])
    answer = kind.decode(examples.labels_NT[index])
    print(kind.render(question), kind.render(answer, question), sep="\n\n")
    if examples.ratings_N is not None:
        print(f"\nrating {examples.ratings_N[index]}")


@contextmanager
def _progress() -> Generator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line for every tenth of the work."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("generating")

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move


def _lines() -> Callable[[int, int], None]:
    said = -1

    def say(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // total if total else 10
        if tenth > said:
            said = tenth
            print(f"generated {done} of {total}", file=sys.stderr, flush=True)

    return say


def _text(report: Report) -> str:
    parts = [f"puzzle {report.puzzle}", *(_split_text(part) for part in report.splits)]
    parts.append(f"test examples also in train: {report.num_shared}, in any symmetric copy: {report.num_equivalent}")
    parts += [f"FAULT: {fault}" for fault in report.faults] or ["no faults"]
    return "\n".join(parts)


def _split_text(part: SplitReport) -> str:
    lines = [
        f"{part.split}: {part.num_examples} examples in {part.num_groups} groups",
        f"  tokens {_range(part.token_range)}, labels {_range(part.label_range)}, wrong labels {part.num_wrong}",
        f"  questions that stand there before: {part.num_repeats}",
        "  givens " + ", ".join(f"{count}: {number}" for count, number in part.givens.items()),
    ]
    if part.rating_quantiles:
        lines.append("  rating " + ", ".join(f"{name} {value}" for name, value in part.rating_quantiles.items()))
    return "\n".join(lines)


def _range(values: tuple[int, int]) -> str:
    return f"{values[0]} to {values[1]}"
