"""CSV files in the shapes of well-known data sets, from puzzles of our generators."""

import numpy as np

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Example, Grid, Puzzle


def line_of(puzzle: Puzzle, grid: Grid) -> str:
    return str(puzzle.asked(grid, "")).replace("\n", "")


def made(puzzle: Puzzle) -> list[Example]:
    rng = np.random.default_rng(5)
    return [puzzle.generate(rng, "easy") for _ in range(6)]


def csv_of(puzzle: Puzzle, header: str, row: str) -> str:
    """A file in the shape of a well-known data set. `row` is filled with a puzzle's values."""
    lines = [header] if header else []
    for number, example in enumerate(made(puzzle)):
        question = line_of(puzzle, example.question)
        answer = line_of(puzzle, example.answer)
        zeros = question.replace(".", "0")
        values = {"q": question, "zeros": zeros, "a": answer, "n": number, "r": example.rating}
        lines.append(row.format(**values))
    return "\n".join(lines) + "\n"


MAZE = registry.get("maze-8x8")
CITY = registry.get("logistics-6x6")
SUDOKU = registry.get("sudoku-6x6")
SHAPES = {
    "a million games": (SUDOKU, "quizzes,solutions", "{zeros},{a}"),
    "with ids and ratings": (SUDOKU, "id,puzzle,solution,clues,difficulty", "{n},{q},{a},24,1.5"),
    "Sudoku-Extreme": (SUDOKU, "source,question,answer,rating", "made,{q},{a},{r}"),
    "Maze-Hard": (MAZE, "source,question,answer,rating", "made,{q},{a},{r}"),
    "no header": (SUDOKU, "", "{n},{q},{a}"),
    "answer first": (SUDOKU, "No.;Lösung;Start", "{n};{a};{q}"),
    "tabs": (MAZE, "Puzzle\tSolution\t", "{q}\t{a}\t"),
    "questions alone": (MAZE, "puzzle", "{q}"),
    "cities": (CITY, "id,city,tour,cost", "{n},{q},{a},{r}"),
    "cities alone": (CITY, "", "{n},{q}"),
}
