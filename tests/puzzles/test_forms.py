"""Every form of the table through every door: the same question, or the same sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hrm_edge.puzzles import SolvingError, entries_of
from hrm_edge.requests import request_from
from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_puzzles import registry
from hrm_puzzles.data.build import import_file
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.examples import read_examples
from hrm_puzzles.puzzle import Labelling, Puzzle, PuzzleError, sized
from hrm_puzzles.reading.forms import (
    CITY,
    FORMS,
    LINES,
    MAZE,
    NUMBERS,
    OBJECTS,
    QUESTIONS,
    ROWS,
    SOLUTION,
    SUDOKU,
    WrittenForm,
)
from hrm_puzzles.reading.record import board_in
from hrm_puzzles.reading.text import plain

Tokens = list[int]
Door = Callable[[WrittenForm, Puzzle, Path], Tokens]


def tokens_of(puzzle: Puzzle, question: object) -> Tokens:
    return puzzle.encode(puzzle.parse(question).grid).tolist()


def by_request(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    """The body of `/solve`, and a line of `/solve/batch`."""
    del folder
    body = json.dumps({"puzzle": form.example}).encode()
    return tokens_of(puzzle, decoding.validated(SolveRequest, body).puzzle)


def by_python(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    del folder
    return tokens_of(puzzle, request_from(form.example, {}).puzzle)


def by_argument(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    del folder
    text = form.example if isinstance(form.example, str) else json.dumps(form.example)
    (entry,) = entries_of(text, [puzzle])
    return tokens_of(puzzle, entry.puzzle)


def written(form: WrittenForm, folder: Path) -> Path:
    file = folder / "puzzles.txt"
    if isinstance(form.example, bytes):
        file.write_bytes(form.example)
    elif isinstance(form.example, str):
        file.write_bytes(form.example.encode())
    else:
        file.write_text(json.dumps(form.example))
    return file


def by_size(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    """A larger board, in the size that the question shows."""
    del folder
    family, _, _ = puzzle.name.partition("-")
    return tokens_of(sized(registry.get(family), form.example), form.example)


def by_file(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    (entry,) = entries_of(str(written(form, folder)), [puzzle])
    return tokens_of(puzzle, request_from(entry.puzzle, entry.fields).puzzle)


def by_build(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    rows = read_examples(written(form, folder), puzzle).rows
    assert len(rows) == 1
    return rows["inputs"][0].tolist()


def by_import(form: WrittenForm, puzzle: Puzzle, folder: Path) -> Tokens:
    out = folder / "data"
    import_file(written(form, folder), puzzle, out, split="train")
    return open_split(out, "train", puzzle).inputs(0).tolist()


BOARD_DOORS = {"request": by_request, "hrm_edge": by_python, "text": by_argument}
FILE_DOORS = {"hrm-solve": by_file, "build": by_build, "import": by_import}
ERRORS = (PuzzleError, DatasetError, SolvingError)


def doors_of(form: WrittenForm) -> dict[str, Door]:
    if form.is_file:
        return FILE_DOORS
    if form.kind.startswith("arc"):  # its question has no label
        return {**BOARD_DOORS, "hrm-solve": by_file}
    doors = {**BOARD_DOORS, **FILE_DOORS}
    if form.kind.startswith(("maze", "logistics")) and form.name != "one line":
        doors["a larger board"] = by_size
    return doors


X_FRAMES = "*-----*\n|1X|3X|\n|34|12|\n|--+--|\n|21|43|\n|43|2X|\n*-----*"
PYTHON_ROWS = "".join(f"    {row},\n" for row in NUMBERS)
JAVA_ROWS = PYTHON_ROWS.replace("[", "{").replace("]", "}")
ARRAY_ROWS = ",\n       ".join(map(str, NUMBERS))
SOLVED_LINES = "1234\n3412\n2143\n4321"
WITH_FIELDS = {"id": 7, "name": "“x”, dtype=", **OBJECTS[0]}
BY_NUMBER = {"puzzle": {"0": SUDOKU}, "solution": {"0": SOLUTION}}
FURTHER = {  # neighbors of the forms that the documents show
    "sudoku-4x4": {
        "Arabic digits": "١.٣.٣٤١٢٢١٤٣٤٣٢.",
        "Chinese digits": "一〇三〇三四一二二一四三四三二〇",
        "digits in circles": "①.③.③④①②②①④③④③②.",
        "digits on keys": LINES.replace("1", "1\ufe0f\u20e3"),
        "middle dots": SUDOKU.replace(".", "·"),
        "underscores": SUDOKU.replace(".", "_"),
        "spaces in one line": SUDOKU.replace(".", " "),
        "dashes": LINES.replace(".", "-"),
        "long dashes": LINES.replace(".", "—"),
        "white squares": SUDOKU.replace(".", "⬜"),
        "the letter O": SUDOKU.replace(".", "O"),
        "typographic quotes": f"“{SUDOKU}”",
        "code of Markdown": f"`{SUDOKU}`",
        "x inside frames": X_FRAMES,
        "slashes between rows": "/".join(ROWS),
        "a YAML block": f"puzzle: |\n{LINES}",
        "line ends from a shell": "\\n".join(ROWS),
        "a name of Python": f"grid = [\n{PYTHON_ROWS}]",
        "a name of C": f"int grid[4][4] = {{\n{JAVA_ROWS}}};",
        "a name of Java": f"int[][] grid = new int[][] {{\n{JAVA_ROWS}}};",
        "a name of MATLAB": "S = [1 0 3 0; 3 4 1 2; 2 1 4 3; 4 3 2 0];",
        "a name before the next line": f"board =\n{json.dumps(ROWS)}",
        "a tensor": f"tensor([{ARRAY_ROWS}], device='cuda:0')",
        "an array with a name": f"a = np.array([{ARRAY_ROWS}], dtype=int8)",
        "single quotes": str([list(row) for row in ROWS]),
        "names in capitals": {"Question": SUDOKU, "ANSWER": SOLUTION},
        "None": str([[value or None for value in row] for row in NUMBERS]),
    },
    "logistics-5x5": {
        "flat list": registry.get("logistics-5x5").parse(CITY).grid.reshape(-1).tolist(),
    },
    "maze-4x5": {
        "line ends from a shell": MAZE.replace("\n", "\\n"),
        "tabs": "\t" + MAZE.replace("\n", "\n\t"),
        "blanks after every line": MAZE.replace("\n", "   \n"),
        "a quoted block": "\n    " + MAZE.replace("\n", "\n    ") + "\n    ",
        "carriage returns": MAZE.replace("\n", "\r\n"),
        "black and white squares": MAZE.replace("#", "⬛").replace(".", "⬜"),
        "a list with a name": "maze = [\n" + "".join(f"  '{row}',\n" for row in MAZE.split()) + "]",
    },
}
REJECTED = WrittenForm("sudoku-4x4", "empty rows", ",,,\n,,,\n", "has 0 cells instead of 16")
FURTHER_FILES = {
    "sudoku-4x4": {
        "labels": f"Puzzle: {SUDOKU}\nSolution: {SOLUTION}\n",
        "labels before digits alone": f"puzzle={SUDOKU.replace('.', '0')}\nanswer={SOLUTION}\n",
        "headings": f"Puzzle 1\n{LINES}\nSolution 1\n{SOLVED_LINES}\n",
        "headings and blank lines": f"Puzzle:\n\n{LINES}\n\nSolution:\n\n{SOLVED_LINES}\n",
        "headings in remarks": f"# puzzle 1\n{SUDOKU}\n# solution 1\n{SOLUTION}\n",
        "a section of puzzles": f"[Puzzles]\n{SUDOKU}\n",
        "fields of a data set": json.dumps([WITH_FIELDS], ensure_ascii=False),
        "columns of pandas": json.dumps(BY_NUMBER),
        "objects of Python": f"[\n  {OBJECTS[0]},\n]",
        "an object with a name": f"const puzzles = {json.dumps(OBJECTS, indent=1)};",
    },
}
EVERY_FORM = [*FORMS, REJECTED]
for kind, examples in FURTHER.items():
    EVERY_FORM += [WrittenForm(kind, name, example) for name, example in examples.items()]
for kind, examples in FURTHER_FILES.items():
    for name, example in examples.items():
        EVERY_FORM.append(WrittenForm(kind, name, example, is_file=True))
PAIRS = [
    pytest.param(form, door, id=f"{form.kind}, {form.name}: {name}")
    for form in EVERY_FORM
    for name, door in doors_of(form).items()
]


@pytest.mark.parametrize(("form", "door"), PAIRS)
def test_every_form_reads_alike_through_every_door(form: WrittenForm, door: Door, tmp_path: Path):
    puzzle = registry.get(form.kind)
    if form.rejected:
        with pytest.raises(ERRORS) as rejected:
            door(form, puzzle, tmp_path)
        assert form.rejected in str(rejected.value)
        assert "\n" not in str(rejected.value)
    else:
        assert door(form, puzzle, tmp_path) == tokens_of(puzzle, QUESTIONS[form.kind])


TRIMMED = (
    "spaces inside frames",
    "spaces for blanks",
    "a blank at the end of a line",
    "blanks after every line",
    "an indent",
    "tabs",
    "a quoted block",
    "carriage returns",
)
"""Texts whose blanks around the board are not kept."""


def test_an_answer_has_the_form_of_its_question():
    for form in EVERY_FORM:
        puzzle = registry.get(form.kind)
        if form.rejected or form.is_file or not isinstance(puzzle, Labelling):
            continue
        asked = board_in(form.example)
        parsed = puzzle.parse(asked)
        label = puzzle.label_of(parsed.grid)
        answer = puzzle.write(label, parsed.notation)
        json.dumps(answer)
        assert type(answer) is type(asked), form.name
        assert puzzle.parse(answer).grid.tolist() == label.tolist(), form.name
        if form.name not in TRIMMED and not isinstance(asked, dict):
            kept = plain(asked) if isinstance(asked, str) else asked
            assert puzzle.write(parsed.grid, parsed.notation) == kept, form.name
