"""Rows of examples in memory, the files that hold them, and the data set they make.

Shapes: N examples, T tokens.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_directory
from hrm_puzzles.data import datasets
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import WRONG, Grid, IntArray, Labelling, Puzzle, PuzzleError, UInt8Array
from hrm_puzzles.reading.legend import MAX_SHOWN, Lettered
from hrm_puzzles.reading.record import PuzzleRecord, board_from
from hrm_puzzles.reading.records import records_at

MAX_JUDGED = 2000  # questions of a file or a split that are searched for a second solution
MAX_SHOWN_PLACES = 10  # bad rows that an error lists
MAX_RATING_DIGITS = 9  # digits of the largest rating, which fits into 32 bits

Examples = NDArray[np.void]  # rows of `example_type`
Rows = dict[str, Examples]  # the rows of "train" and of "test"
Say = Callable[[str], object]


def quiet(sentence: str) -> None:
    """Ignore a sentence that a command would print."""


def example_type(puzzle: Puzzle) -> np.dtype[np.void]:
    """The tokens of a question and its answer, [T] each, and the rating of the question."""
    question = ("inputs", np.uint8, puzzle.seq_len)
    answer = ("labels", np.uint8, puzzle.seq_len)
    return np.dtype([question, answer, ("rating", "<i4")])


class FileContent(NamedTuple):
    """The good rows of a file, and what else to say about it.

    `names` are the identifiers of the rows, such as ARC tasks. `faults` has a sentence for the
    place of each row that is left out.
    """

    rows: Examples
    names: list[str]
    faults: dict[str, str]


def read_examples(
    path: Path,
    puzzle: Puzzle,
    columns: str | None = None,
    *,
    skip_bad: bool = False,
    say: Say = quiet,
) -> FileContent:
    """Read a file and check every answer.

    A question without an answer is labeled by the puzzle's exact solver. A rating that is not a
    whole number counts as 0. Bad rows raise DatasetError, unless `skip_bad` omits them. `say` gets
    sentences about odd ratings and ambiguous questions.
    """
    content = bytearray()
    names: list[str] = []
    faults: dict[str, str] = {}
    odd_ratings: list[str] = []
    for record in records_at(path, [puzzle], columns):
        try:
            name, tokens_2T = _example_of(puzzle, record)
        except PuzzleError as error:
            faults[record.place] = f"{path}, {record.place}: {error}"
            continue
        rating = _rating_of(record.rating)
        if rating is None:
            odd_ratings.append(f"{record.rating[:MAX_SHOWN]!r} in {record.place}")
        content += tokens_2T.tobytes() + (rating or 0).to_bytes(4, "little")
        names.append(name)
    if faults and not skip_bad:
        remedy = "correct them, or omit them with hrm-data build --skip-bad"
        raise datasets.DatasetError(f"{bad_rows_text(faults)}; {remedy}.")
    if odd_ratings:
        count = f"{len(odd_ratings)} ratings of {path}"
        first = f"the first is {odd_ratings[0]}"
        say(f"{count} are not whole numbers and count as unknown: {first}.")
    rows = np.frombuffer(bytes(content), dtype=example_type(puzzle))
    for sentence in ambiguous_text(puzzle, rows["inputs"], f"questions of {path}"):
        say(sentence)
    return FileContent(rows, names, faults)


def bad_rows_text(faults: dict[str, str]) -> str:
    """The first fault, and the places of all bad rows."""
    places = list(faults)
    shown_places = ", ".join(places[:MAX_SHOWN_PLACES])
    if len(places) > MAX_SHOWN_PLACES:
        shown_places += ", ..."
    rows = "row is" if len(places) == 1 else "rows are"
    return f"{faults[places[0]]} {len(places)} {rows} bad ({shown_places})"


def _example_of(puzzle: Puzzle, record: PuzzleRecord) -> tuple[str, UInt8Array]:
    """The identifier and the tokens of a question and its answer, [2, T]. Raises PuzzleError."""
    if record.problem:
        raise PuzzleError(record.problem, "bad-row", record.remedy)
    name, question = named_board(puzzle, record.question, "question")
    inputs_T = puzzle.encode(question)
    if record.answer is not None:
        _, answer = named_board(puzzle, _with_task(name, record.answer), "answer")
    elif isinstance(puzzle, Labelling):
        answer = puzzle.label_of(question)
        if isinstance(puzzle, GridPuzzle):  # a marked answer is no part of the question
            inputs_T = puzzle.bare(inputs_T)
    else:
        raise PuzzleError("the question has no answer", "no-answer", "add the answer")
    labels_T = puzzle.encode(answer)
    if puzzle.check_BT(inputs_T[None], labels_T[None])[0] == WRONG:
        text = str(puzzle.asked(answer, ""))[:MAX_SHOWN]
        problem = f"the answer {text!r} does not solve the question"
        raise PuzzleError(problem, "wrong-answer", "correct or remove the row")
    return name, np.stack([inputs_T, labels_T]).astype(np.uint8)


def _rating_of(text: str) -> int | None:
    """The rating in a text; 0 without any, None if it is not a whole number."""
    if not text:
        return 0
    if text.isascii() and text.isdigit() and len(text) <= MAX_RATING_DIGITS:
        return int(text)
    return None


def _with_task(name: str, answer: object) -> object:
    """An answer with the task of its question; it need not name the task again."""
    if name and not isinstance(answer, dict):
        return {"task": name, "input": answer}
    return answer


def require_label(puzzle: Puzzle, question: object, solution: object) -> None:
    """Raise PuzzleError for an invalid question, or for a solution that does not solve it."""
    asked = puzzle.parse(question)
    said = puzzle.parse(_with_task(asked.identifier or "", solution))
    inputs_1T = puzzle.encode(asked.grid)[None]
    labels_1T = puzzle.encode(said.grid)[None]
    if puzzle.check_BT(inputs_1T, labels_1T)[0] == WRONG:
        problem = "the solution does not solve the puzzle"
        raise PuzzleError(problem, "wrong-solution", "correct or remove it")


def named_board(puzzle: Puzzle, value: object, what: str) -> tuple[str, Grid]:
    """The identifier and the grid of a question or an answer. Raises PuzzleError."""
    try:
        if isinstance(puzzle, Lettered):
            return "", board_from(puzzle, value)
        parsed = puzzle.parse(value)
    except PuzzleError as error:
        problem = f"in the {what} {str(value)[:MAX_SHOWN]!r} {error.problem}"
        raise PuzzleError(problem, error.rule, error.remedy, error.cell) from None
    return parsed.identifier or "", parsed.grid


def num_ambiguous_in(puzzle: Puzzle, inputs_NT: IntArray) -> tuple[int, int]:
    """How many of some questions have several solutions, and how many were searched.

    The search takes evenly spaced questions, at most MAX_JUDGED.
    """
    if not puzzle.proof_exists or not len(inputs_NT):
        return 0, 0
    count = min(len(inputs_NT), MAX_JUDGED)
    places = np.linspace(0, len(inputs_NT) - 1, count).astype(int)
    found = 0
    for place in places.tolist():
        question = puzzle.decode(np.asarray(inputs_NT[place]))
        try:
            puzzle.parse(puzzle.asked(question, ""))
        except PuzzleError as error:
            found += error.rule == "many-solutions"
    return found, count


def ambiguous_text(puzzle: Puzzle, inputs_NT: IntArray, subject: str) -> list[str]:
    """A sentence about questions with several solutions; empty without any."""
    found, count = num_ambiguous_in(puzzle, inputs_NT)
    if not found:
        return []
    searched = ""
    if count < len(inputs_NT):
        searched = f" ({count} of {len(inputs_NT)} were searched)"
    return [f"{subject} with more than one solution{searched}: {found}; remove them."]


def write_data_set(
    puzzle: Puzzle, recipe: Mapping[str, object], rows: Rows, out: Path
) -> datasets.BuiltSet:
    """Write the data set of all rows. `recipe` is the content of recipe.json."""
    all_train = rows["train"]
    test = rows["test"]
    # Only rows of files can be copies of test examples: generated ones are disjoint.
    train_N = puzzle.equivalence_hash_B(all_train["inputs"], all_train["labels"])
    test_N = puzzle.equivalence_hash_B(test["inputs"], test["labels"])
    train = all_train[~np.isin(train_N, test_N)]
    with new_directory(out) as directory:
        for split, examples in (("train", train), ("test", test)):
            datasets.write_split(
                directory,
                split,
                examples["inputs"],
                examples["labels"],
                puzzle=puzzle,
                ratings_N=examples["rating"],
            )
        datasets.write_identifiers(directory)
        datasets.write_recipe(directory, puzzle, recipe)
    return datasets.BuiltSet(
        num_train=len(train),
        num_test=len(test),
        num_left_out=len(all_train) - len(train),
        fingerprint=datasets.fingerprint(out),
    )
