"""The forms in which people have puzzles: what is read, and the sentence that rejects the rest.

docs/notations.md shows this table, and a test sends every row through every door. A board has all
doors: the page, `/solve`, `/solve/batch`, `hrm_edge`, `hrm-solve`, and `hrm-data` build and import.
A file has the doors of the commands.
"""

import io
import json
import math
from functools import partial
from typing import NamedTuple

import numpy as np

SUDOKU = "1.3.34122143432."
SOLUTION = "1234341221434321"
ROWS = ["1.3.", "3412", "2143", "432."]
NUMBERS = [[1, 0, 3, 0], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 0]]
LINES = "1.3.\n3412\n2143\n432."
MAZE = "#####\n#S.G#\n#...#\n#####"
MAZE_NUMBERS = [[1, 1, 1, 1, 1], [1, 2, 0, 3, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
MAZE_OBJECT = {
    "grid": [[1] * 5, [1, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1] * 5],
    "start": [1, 1],
    "goal": [1, 3],
}
CITY = "D...C\n.###.\n.....\n.#4#.\nC...."
ARC = {"task": "0520fde7", "input": [[0, 7, 7], [7, 7, 7]]}
QUESTIONS: dict[str, object] = {
    "sudoku-4x4": SUDOKU,
    "maze-4x5": MAZE,
    "logistics-5x5": CITY,
    "arc-7x7": ARC,
}


class WrittenForm(NamedTuple):
    """A form with an example, which is bytes only in a file of arrays or of another encoding.

    It reads as the question of its kind, or `rejected` is in the sentence about it.
    """

    kind: str
    name: str
    example: object
    rejected: str = ""
    is_file: bool = False


_sudoku = partial(WrittenForm, "sudoku-4x4")
_maze = partial(WrittenForm, "maze-4x5")
_city = partial(WrittenForm, "logistics-5x5")
_arc = partial(WrittenForm, "arc-7x7")
_file = partial(_sudoku, is_file=True)


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, puzzles=np.array([NUMBERS]), solutions=np.array([list(map(int, SOLUTION))]))
    return stream.getvalue()


def _npy(values: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values))
    return stream.getvalue()


EDGE = "+-----+-----+"
WITH_NAN = [[value or math.nan for value in row] for row in NUMBERS]
FULL_WIDTH = "１．３．３４１２２１４３４３２．"
OBJECTS = [{"puzzle": SUDOKU, "solution": SOLUTION}]
SPREADSHEET = "in the spreadsheet"
TWO_SHAPES = "write . for open cells"

MAIN = (
    "one line",
    "lines",
    "frames of hrm-solve",
    "list of lines",
    "rows of characters",
    "rows of numbers",
    "flat list with null",
    "an object",
    "a question of a task",
    "a list of lines of digits",
    "lines of digits",
    "a whole task",
)
"""The forms that the page shows first, with their answers."""

FORMS = (
    _sudoku("one line", SUDOKU),
    _sudoku("zeros for blanks", "1030341221434320"),
    _sudoku("lines", LINES),
    _sudoku("lines with blanks around them", "\n  1.3.  \n  3412\n  2143\n  432.\n"),
    _sudoku("a fence of Markdown", f"```text\n{LINES}\n```"),
    _sudoku("colors of a terminal", LINES.replace("1.", "\x1b[1m1\x1b[0m.")),
    _sudoku("the end of a DOS file", f"{LINES}\x1a"),
    _sudoku("old line ends", LINES.replace("\n", "\r")),
    _sudoku("groups", "1.3. 3412 2143 432."),
    _sudoku(
        "frames of hrm-solve",
        " 1  . | 3  . \n 3  4 | 1  2 \n------+------\n 2  1 | 4  3 \n 4  3 | 2  . ",
    ),
    _sudoku(
        "frames of Simple Sudoku", "*-----*\n|1.|3.|\n|34|12|\n|--+--|\n|21|43|\n|43|2.|\n*-----*"
    ),
    _sudoku("box drawing", "╔══╦══╗\n║1.║3.║\n║34║12║\n╠══╬══╣\n║21║43║\n║43║2.║\n╚══╩══╝"),
    _sudoku(
        "spaces inside frames",
        f"{EDGE}\n| 1   | 3   |\n| 3 4 | 1 2 |\n{EDGE}\n| 2 1 | 4 3 |\n| 4 3 | 2   |\n{EDGE}",
    ),
    _sudoku(
        "a bar between all cells",
        "| 1 |   | 3 |   |\n| 3 | 4 | 1 | 2 |\n| 2 | 1 | 4 | 3 |\n| 4 | 3 | 2 |   |",
    ),
    _sudoku("spaces for blanks", "1 3 \n3412\n2143\n432"),
    _sudoku("dashes for blanks and frames", "1-|3-\n34|12\n--+--\n21|43\n43|2-"),
    _sudoku(".sdk with its state", f"#A somebody\n[Puzzle]\n{LINES}\n[State]\n1234\n34..\n"),
    _sudoku("a heading", f"Grid 01\n{LINES}"),
    _sudoku("HoDoKu's line", f":0000:x:{SUDOKU}:::"),
    _sudoku(
        "HoDoKu's frames",
        ".-----.-----.\n| 1 . | 3 . |\n| 3 4 | 1 2 |\n:-----+-----:\n"
        "| 2 1 | 4 3 |\n| 4 3 | 2 . |\n'-----'-----'",
    ),
    _sudoku("a remark after the board", f"{SUDOKU} # ED=7.2/1.2/1.2"),
    _sudoku("a remark before the board", f"# the first\n{SUDOKU}"),
    _sudoku("invisible characters", f"\ufeff{SUDOKU[:8]}\u200b{SUDOKU[8:]}"),
    _sudoku("no-break spaces", "\n".join("\u00a0".join(row) for row in ROWS)),
    _sudoku("full-width characters", FULL_WIDTH),
    _sudoku("a table with empty cells", "1,,3,\n3,4,1,2\n2,1,4,3\n4,3,2,"),
    _sudoku("a table with tabs", "1\t\t3\t\n3\t4\t1\t2\n2\t1\t4\t3\n4\t3\t2\t"),
    _sudoku("a table of floats", "1.0;;3.0;\n3.0;4;1;2\n2;1;4;3\n4;3;2;"),
    _sudoku("a printed array", "[[1 0 3 0]\n [3 4 1 2]\n [2 1 4 3]\n [4 3 2 0]]"),
    _sudoku(
        "a printed array of floats",
        "array([[1., 0., 3., 0.],\n [3., 4., 1., 2.],\n [2., 1., 4., 3.],\n [4., 3., 2., nan]])",
    ),
    _sudoku(
        "a printed array with NaN",
        "[[ 1. nan  3. nan]\n [ 3.  4.  1.  2.]\n [ 2.  1.  4.  3.]\n [ 4.  3.  2. nan]]",
    ),
    _sudoku("a list in a text", json.dumps(NUMBERS)),
    _sudoku("JSON with comments", f'// mine\n{{\n  // the board\n  "puzzle": "{SUDOKU}"\n}}'),
    _sudoku("lists in braces", "{{1,0,3,0},\n {3,4,1,2},\n {2,1,4,3},\n {4,3,2,0}};"),
    _sudoku("list of lines", ROWS),
    _sudoku("rows of numbers", NUMBERS),
    _sudoku("rows of characters", [list(row) for row in ROWS]),
    _sudoku("flat list with null", [value or None for row in NUMBERS for value in row]),
    _sudoku("-1 for blanks", [[value or -1 for value in row] for row in NUMBERS]),
    _sudoku("whole floats", [[float(value) for value in row] for row in NUMBERS]),
    _sudoku("an object with the grid", {"grid": NUMBERS}),
    _sudoku("an object with question and answer", {"question": SUDOKU, "answer": SOLUTION}),
    _sudoku(
        "digits from 0",
        [[value - 1 for value in row] for row in NUMBERS],
        "0 can be a blank or a digit",
    ),
    _sudoku("candidates", "1 24 3 24\n3 4 1 2\n2 1 4 3\n4 3 2 1", "several digits in a cell"),
    _sudoku("an address", f"https://www.sudokuwiki.org/sudoku.htm?bd={SUDOKU}", "is an address"),
    _sudoku("XML", f'<game data="{SUDOKU}" />', "is XML or HTML"),
    _sudoku("a formula of a spreadsheet", f'="{SUDOKU}"', SPREADSHEET),
    _sudoku("a number that lost its leading zeros", "30341221434320", SPREADSHEET),
    _sudoku("a rounded number", "1.03034E+15", SPREADSHEET),
    _sudoku("a cell that is missing", SUDOKU[:-1], "15 cells instead of 16"),
    _sudoku("x for blanks", SUDOKU.replace(".", "x")),
    _sudoku("? for blanks", LINES.replace(".", "?")),
    _sudoku("another mark", SUDOKU.replace("3.", "3#"), "instead of 16"),
    _sudoku("a mark beside dots", SUDOKU.replace("3.", "3?", 1), "is '?'"),
    _maze("lines", MAZE),
    _maze("one line", MAZE.replace("\n", "")),
    _maze("spaces for open cells", MAZE.replace(".", " ")),
    _maze("a blank at the end of a line", MAZE.replace(".", " ").replace("G#", "G# ")),
    _maze(
        "cells of two characters",
        "##########\n##S   G ##\n##      ##\n##########",
        "can be one or two characters wide",
    ),
    _maze("commas between cells", "\n".join(",".join(line) for line in MAZE.split("\n"))),
    _maze(
        "a wall that is lost", MAZE.replace(".", " ").replace("G#", "G"), "ends before the others"
    ),
    _maze("an indent", "\n".join(f"    {line}" for line in MAZE.split("\n"))),
    _maze("blocks", MAZE.replace("#", "█")),
    _maze("E for the goal", MAZE.replace("G", "E")),
    _maze("s and f", MAZE.replace("S", "s").replace("G", "f")),
    _maze("X for walls", MAZE.replace("#", "X")),
    _maze("* for walls", MAZE.replace("#", "*")),
    _maze("@ for the start", MAZE.replace("S", "@")),
    _maze("1 and 0", MAZE.replace("#", "1").replace(".", "0")),
    _maze("spaces between cells", "\n".join(" ".join(line) for line in MAZE.split("\n"))),
    _maze("a printed array", "[[1 1 1 1 1]\n [1 2 0 3 1]\n [1 0 0 0 1]\n [1 1 1 1 1]]"),
    _maze("list of lines", MAZE.split("\n")),
    _maze("rows of characters", [list(line) for line in MAZE.split("\n")]),
    _maze("rows of numbers", MAZE_NUMBERS),
    _maze("an object", MAZE_OBJECT),
    _maze(
        "an object with start and end",
        {"grid": MAZE_OBJECT["grid"], "start": [1, 1], "end": [1, 3]},
    ),
    _maze(
        "an indent of spaces",
        "\n".join(f"  {line}" for line in MAZE.replace(".", " ").split("\n")),
        TWO_SHAPES,
    ),
    _maze(
        "drawn walls",
        "+--+--+\n|S    |\n+  +--+\n|    G|\n+--+--+",
        "drawn as lines between the cells",
    ),
    _maze(
        "a mark that could be both ends",
        MAZE.replace("S", ".").replace("G", "E"),
        "can be read in 2 ways",
    ),
    _city("lines", CITY),
    _city(
        "rows of numbers",
        [[5, 1, 1, 1, 6], [1, 0, 0, 0, 1], [1] * 5, [1, 0, 4, 0, 1], [6, 1, 1, 1, 1]],
    ),
    _city(
        "an object",
        {
            "grid": [[1] * 5, [1, 0, 0, 0, 1], [1] * 5, [1, 0, 4, 0, 1], [1] * 5],
            "depot": [0, 0],
            "customers": [[0, 4], [4, 0]],
        },
    ),
    _city("an indent", "\n".join(f"  {line}" for line in CITY.split("\n"))),
    _arc("a question of a task", ARC),
    _arc("a list of lines of digits", {"task": "0520fde7", "input": ["077", "777"]}),
    _arc("lines of digits", {"task": "0520fde7", "input": "077\n777"}),
    _arc(
        "a whole task",
        {"task": "0520fde7", "train": [], "test": [{"input": ARC["input"]}], "index": 0},
    ),
    _arc("a question with task_id", {"task_id": "0520fde7", "input": ARC["input"]}),
    _arc("rows without a task", [[0, 7]], "do not name their task"),
    _file("a table with a header", f"# mine\nid,puzzle,solution,rating\n7,{SUDOKU},{SOLUTION},3\n"),
    _file("a table of Excel", f"sep=;\npuzzle;solution\n{SUDOKU};{SOLUTION}\n"),
    _file("a table without a header", f"7;{SUDOKU};{SOLUTION}\n"),
    _file("lists in cells", f'puzzle,solution\n"{NUMBERS}","{SOLUTION}"\n'),
    _file("question and answer in a line", f"{SUDOKU} {SOLUTION}\n"),
    _file("boards with headings", f"Grid 01\n{LINES}\n"),
    _file("objects in lines", f"{json.dumps(OBJECTS[0])}\n"),
    _file("a list of objects", json.dumps(OBJECTS, indent=1)),
    _file("objects under names", json.dumps({"first": OBJECTS[0]})),
    _file("objects under one name", json.dumps({"data": OBJECTS})),
    _file("JSON that was cut", json.dumps(OBJECTS)[:30], "begins like JSON"),
    _file("columns of boards", json.dumps({"quizzes": [SUDOKU], "solutions": [SOLUTION]})),
    _file("pairs of boards", json.dumps([[SUDOKU, SOLUTION]])),
    _file("UTF-16", LINES.encode("utf-16")),
    _file(".npy", _npy(NUMBERS)),
    _file(".npy with NaN for blanks", _npy(WITH_NAN)),
    _file(".npz", _npz()),
)
