"""docs/notations.md shows every notation as the code reads it.

Run this file with Python to write the page again.
"""

import json
from pathlib import Path

import numpy as np

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import Described, Puzzle

PAGE = Path(__file__).parents[2] / "docs" / "notations.md"
HEAD = """# Notations

Reference: every notation of a puzzle, each with its answer, which has the notation of the question.
The page is generated from the code (`python tests/puzzles/test_notations_page.py`). `/docs` of a
running server shows the notations of its models.

Send a puzzle with `curl localhost:8000/solve -d '{"puzzle": "..."}'` or `hrm-solve PUZZLE`, or paste
it into the web page. The boards below are small; `/models` shows the size that a model takes. Rows and
columns of a JSON object count from 0; errors count cells from 1.
"""
AS_ABOVE = ("one line", "list of lines", "rows of characters")  # cities have them as mazes do
ARC_QUESTION = {"task": "0520fde7", "input": [[0, 7, 7], [7, 7, 7]]}
ARC_ANSWER = np.array([[7, 0, 7], [0, 7, 0]], np.int8)
PUZZLES: dict[str, Puzzle] = {  # small boards, to be read by eye
    "Sudoku": registry.get("sudoku-4x4"),
    "Mazes": Maze(name="maze-4x4", rows=4, cols=4),
    "Cities": Logistics(name="logistics-5x5", rows=5, cols=5),
    "ARC": registry.get("arc-7x7"),
}


def page() -> str:
    parts = [HEAD]
    for title, puzzle in PUZZLES.items():
        assert isinstance(puzzle, Described)
        about = puzzle.about[0].upper() + puzzle.about[1:]
        parts.append(f"## {title}\n\n{about}.\n")
        asked, answer = example_of(puzzle)
        forms = puzzle.forms(asked)
        if title == "Cities":
            parts.append(f"Also as for mazes: {', '.join(AS_ABOVE)}.\n")
            forms = {form: forms[form] for form in forms if form not in AS_ABOVE}
        for form, question in forms.items():
            solution = puzzle.write(answer, puzzle.parse(question).notation)
            parts.append(f"**{form.capitalize()}**\n\n{shown(question)}")
            parts.append(f"Answer:\n\n{shown(solution)}")
    return "\n".join(parts)


def example_of(puzzle: Puzzle) -> tuple[object, np.ndarray]:
    if not puzzle.proof_exists:
        return ARC_QUESTION, ARC_ANSWER
    example = puzzle.generate(np.random.default_rng(3), "medium")
    return puzzle.asked(example.question, ""), example.answer


def shown(value: object) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return f"```\n{value}\n```\n"


def test_the_page_is_the_codes_own() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"run python {Path(__file__).name} to write it again"
    )


def test_every_form_of_every_puzzle_is_read_as_the_same_question() -> None:
    for name in registry.names():
        puzzle = registry.get(name)
        if not isinstance(puzzle, Described):
            continue
        asked = puzzle.sample(["a task"])
        expected = puzzle.parse(asked).grid.tolist()
        for form, question in puzzle.forms(asked).items():
            assert puzzle.parse(question).grid.tolist() == expected, (name, form)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
