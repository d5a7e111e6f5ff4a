"""Write new hard 9x9 Sudokus: `python -m hrm_benchmarks.climbs OUT.csv --seed 2`.

The file has the format of the published CSV files, so `hrm-bench accuracy --questions` reads it.
"""

import csv
import io
from collections.abc import Iterator
from itertools import count as naturals
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from hrm_benchmarks.accuracy import puzzles_from_file
from hrm_benchmarks.command import Seed
from hrm_host import atomic
from hrm_host.command import Command
from hrm_host.progress import stages_on
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Example, Grid, Puzzle
from hrm_puzzles.sudoku.climb import climb
from hrm_puzzles.sudoku.sudoku import Sudoku

COLUMNS = ("source", "question", "answer", "rating")
SOURCE = "climb"
MIN_RATING = 200  # backtracks
ALL = 10_000_000  # more rows than a file of questions has

app = Command("python -m hrm_benchmarks.climbs", extra="serve,bench")


@app.command()
def main(
    out: Annotated[Path, Argument(help="CSV file to write.")],
    count: Annotated[int, Option(min=1, help="Number of puzzles.")] = 100,
    seed: Seed = 0,
    min_rating: Annotated[int, Option(min=1, help="Minimum number of backtracks.")] = MIN_RATING,
    exclude: Annotated[
        list[Path] | None,
        Option(help="File of puzzles to exclude, with their symmetric copies; may be repeated."),
    ] = None,
) -> None:
    """Make hard 9x9 Sudokus by hill climbing, each with one solution."""
    atomic.require_free(out)
    puzzle = registry.get("sudoku")
    assert isinstance(puzzle, Sudoku)
    taken = hashes_of(puzzle, exclude or [])
    made: list[Example] = []
    with stages_on() as stages:
        stages.show("climbs", 0, count)
        for example in climbs(puzzle, seed=seed, min_rating=min_rating, taken=taken):
            made.append(example)
            atomic.write_text(out, csv_of(puzzle, made))  # what is made stays after Ctrl-C
            stages.show("climbs", len(made), count)
            if len(made) == count:
                break


def climbs(puzzle: Sudoku, *, seed: int, min_rating: int, taken: set[int]) -> Iterator[Example]:
    """Yield climbs without end, each from its own seed, none equivalent to another or to `taken`.

    Adds their hashes to `taken`.
    """
    for number in naturals():
        rng = np.random.default_rng([seed, number])
        example = climb(puzzle, rng, min_rating)
        found = hash_of(puzzle, example.question, example.answer)
        if found not in taken:
            taken.add(found)
            yield example


def hashes_of(puzzle: Sudoku, files: list[Path]) -> set[int]:
    """The hashes of all puzzles in some files; raises ValueError if a line is not a puzzle."""
    hashes: set[int] = set()
    for file in files:
        for known in puzzles_from_file(file, puzzle, ALL):
            question = puzzle.parse(known.puzzle).grid
            assert known.solution is not None
            hashes.add(hash_of(puzzle, question, known.solution))
    return hashes


def hash_of(puzzle: Puzzle, question: Grid, answer: Grid) -> int:
    """A hash that turned and relabeled copies of a puzzle share."""
    question_BT = puzzle.encode(question)[None]
    answer_BT = puzzle.encode(answer)[None]
    return int(puzzle.equivalence_hash_B(question_BT, answer_BT)[0])


def csv_of(puzzle: Sudoku, examples: list[Example]) -> str:
    """Rows of source, question, answer and rating under a header."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for example in examples:
        asked = puzzle.asked(example.question)
        rows.writerow((SOURCE, asked, puzzle.asked(example.answer), example.rating))
    return text.getvalue()


if __name__ == "__main__":
    app()
