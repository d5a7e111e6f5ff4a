"""Where examples come from, and the questions held out of training: generators, CSV files, the hub, data sets.

Puzzles are generated in parallel, the same for a seed with any number of workers, and continued after a stop: the work
is cut into chunks, each with a random stream and a file of its own. CSV files have the form of Sudoku-Extreme and
Maze-Hard: a header and the columns source, question, answer, rating. Fresh questions and the test split of a data set
hold no puzzle of a training split; a CSV file may hold anything. Shapes: N examples, T tokens.
"""

import csv
import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hrm_host import atomic, workers
from hrm_host.progress import OnProgress, unheard
from hrm_host.reading import lines_of
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import DatasetError, named_in_recipe, open_split
from hrm_puzzles.puzzle import RIGHT, CsvForm, Example, IntArray, Puzzle, PuzzleError

CHUNK = 64  # puzzles: seconds of work, so that little is lost and progress is seen
HELD_OUT = 4  # one equivalence class in so many belongs to test splits, whatever the seed
MIXED = "mixed"
COLUMNS = ["source", "question", "answer", "rating"]
MAX_CSV_LINE = 1 << 20  # characters; a row of the largest maze has 2,000
HUB = "hub:"
BY_HAND = "download train.csv and test.csv by hand and give them with --csv-train and --csv-test"

Examples = NDArray[np.void]  # rows of `example_type`


def example_type(puzzle: Puzzle) -> np.dtype[np.void]:
    """The tokens of a question and its answer, [T] each, and the rating of the question."""
    return np.dtype(
        [
            ("inputs", np.uint8, puzzle.seq_len),
            ("labels", np.uint8, puzzle.seq_len),
            ("rating", "<i4"),
        ]
    )


def generated(
    puzzle: Puzzle,
    count: int,
    directory: Path,
    *,
    is_test: bool,
    difficulty: str = MIXED,
    seed: int = 0,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> Examples:
    """`count` puzzles; test splits take the held-out classes. Those whose file is in `directory` are not made again."""
    directory.mkdir(parents=True, exist_ok=True)
    chunks = {
        directory / f"{'test' if is_test else 'train'}-{index:06d}.npy": (
            index,
            min(CHUNK, count - start),
        )
        for index, start in enumerate(range(0, count, CHUNK))
    }
    missing = [(file, *chunk) for file, chunk in chunks.items() if not file.exists()]
    done = count - sum(size for _, _, size in missing)
    progress(done, count)
    make = partial(_make_chunk, puzzle.name, difficulty, seed, is_test)
    for size in workers.results_of(make, missing, num_workers=num_workers):
        done += size
        progress(done, count)
    found = [np.load(file, allow_pickle=False) for file in chunks]
    return np.concatenate([np.zeros(0, dtype=example_type(puzzle)), *found])


def difficulties_of(puzzle: Puzzle, difficulty: str) -> list[str]:
    """One difficulty, several with commas, or "mixed": all but "extreme", which takes far longer to make."""
    quick = [name for name in puzzle.difficulties if name != "extreme"]
    chosen = quick if difficulty == MIXED else difficulty.split(",")
    for name in chosen:
        if name not in puzzle.difficulties:
            remedy = f"use {MIXED}, or one or more of {', '.join(puzzle.difficulties)}"
            raise PuzzleError(
                f"{puzzle.name} has no difficulty {name!r}", "unknown-difficulty", remedy
            )
    return chosen


def is_held_out_N(puzzle: Puzzle, inputs_NT: IntArray, labels_NT: IntArray) -> NDArray[np.bool_]:
    """Which examples belong to test splits only; a rule over equivalence classes, the same for every build."""
    return puzzle.equivalence_hash_B(inputs_NT, labels_NT) % np.uint64(HELD_OUT) == 0


def fresh(puzzle: Puzzle, rng: np.random.Generator, difficulty: str, *, is_test: bool) -> Example:
    """A puzzle of the classes that belong to test splits only, or of the others."""
    while True:
        example = puzzle.generate(rng, difficulty)
        inputs_1T, labels_1T = (
            puzzle.encode(grid)[None] for grid in (example.question, example.answer)
        )
        if is_held_out_N(puzzle, inputs_1T, labels_1T)[0] == is_test:
            return example


def _make_chunk(
    name: str, difficulty: str, seed: int, is_test: bool, job: tuple[Path, int, int]
) -> int:
    """Generate one chunk into its file, from a stream of its own; runs in a worker process."""
    file, index, size = job
    puzzle = registry.get(name)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(is_test), index)))
    names = difficulties_of(puzzle, difficulty)
    rows = np.zeros(size, dtype=example_type(puzzle))
    for number in range(size):
        example = fresh(puzzle, rng, str(rng.choice(names)), is_test=is_test)
        rows[number] = (
            puzzle.encode(example.question),
            puzzle.encode(example.answer),
            example.rating,
        )
    with atomic.new_file(file) as unfinished, unfinished.open("wb") as stream:
        np.save(stream, rows)
    return size


def read_csv(path: Path, puzzle: Puzzle) -> Examples:
    """Every answer is checked, refusals name the line. Ratings are the file's own (Sudoku-Extreme: tdoku's guesses)."""
    if not isinstance(puzzle, CsvForm):
        raise DatasetError(
            f"{path}: {puzzle.name} has no CSV form; generate, build or import its data sets instead."
        )
    content, lines = bytearray(), array("q")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        numbered = _rows_of(path, stream)
        _, header = next(numbered, (1, []))
        if header != COLUMNS:
            raise _csv_error(
                path,
                1,
                f"the columns are {header}"[:200],
                f"begin the file with {','.join(COLUMNS)}",
            )
        for number, row in numbered:
            rating = _rating(path, number, row)
            for column, text in (("question", row[1]), ("answer", row[2])):
                try:
                    content += puzzle.encode(puzzle.board_of(text)).astype(np.uint8).tobytes()
                except PuzzleError as error:
                    problem = f"in the {column} {error.problem}"
                    raise _csv_error(path, number, problem, error.remedy) from None
            content += rating.to_bytes(4, "little")
            lines.append(number)
    rows = np.frombuffer(content, dtype=example_type(puzzle))
    wrong = np.flatnonzero(puzzle.check_BT(rows["inputs"], rows["labels"]) != RIGHT)
    if len(wrong):
        problem = "the answer does not solve the question"
        raise _csv_error(path, lines[int(wrong[0])], problem, "correct or remove the row")
    return rows


def _rows_of(path: Path, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, with the number of the line on which each ends."""
    reader = csv.reader(lines_of(stream, MAX_CSV_LINE))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise _csv_error(
            path, reader.line_num, str(error), "write one puzzle in each line"
        ) from error
    except ValueError as error:  # before the reader has counted the line
        raise _csv_error(
            path, reader.line_num + 1, str(error), "write one puzzle in each line, in UTF-8"
        ) from error


def _rating(path: Path, line: int, row: list[str]) -> int:
    if len(row) != len(COLUMNS):
        raise _csv_error(path, line, f"there are {len(row)} columns", f"write {','.join(COLUMNS)}")
    if not (row[3].isascii() and row[3].isdigit() and len(row[3]) < 10):
        raise _csv_error(path, line, f"the rating is {row[3][:20]!r}", "write a whole number")
    return int(row[3])


def _csv_error(path: Path, line: int, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{path}, line {line}: {problem}; {remedy}.")


def downloaded(
    source: str, *files: str, repo_type: str = "dataset", by_hand: str = BY_HAND
) -> list[Path]:
    """Files of `hub:ORG/NAME` (train.csv and test.csv), downloaded once; every failure is one sentence."""
    name = source.removeprefix(HUB)
    if not source.startswith(HUB) or name.count("/") != 1:
        raise DatasetError(
            f"{source!r} is no source; write {HUB}ORG/NAME, as in {HUB}sapientinc/sudoku-extreme."
        )
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        remedy = f"install it with pip install 'hrm-edge[hub]', or {by_hand}"
        raise DatasetError(
            f"{source} needs the package huggingface_hub, which is missing; {remedy}."
        ) from error
    try:
        return [
            Path(hf_hub_download(name, file, repo_type=repo_type))
            for file in files or ("train.csv", "test.csv")
        ]
    except (
        Exception
    ) as error:  # its HTTP library has errors of its own, as for redirects without end
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        remedy = f"check the name and the network, or {by_hand}"
        raise DatasetError(f"{source} cannot be fetched ({reason}); {remedy}.") from error


SEED = 20_017
"""Of fresh puzzles; whatever the seed, they are of classes that no training split holds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutPuzzle:
    """One puzzle with its label (negative where any answer will do); `index` is its place in the collection."""

    index: int
    tokens_T: NDArray[np.int32]
    labels_T: NDArray[np.int32]
    puzzle_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Tokens, labels (negative where any answer will do), puzzle ids, ratings where the source has them, its name."""

    tokens_NT: NDArray[np.int32]
    labels_NT: NDArray[np.int32]
    puzzle_ids_N: NDArray[np.int32]
    ratings_N: NDArray[np.int32] | None = None
    source: str

    def __len__(self) -> int:
        return len(self.tokens_NT)

    @property
    def title(self) -> str:
        return f"{len(self)} puzzles ({self.source})"

    def __getitem__(self, index: int) -> HeldOutPuzzle:
        tokens_T, labels_T, puzzle_id = (
            self.tokens_NT[index],
            self.labels_NT[index],
            int(self.puzzle_ids_N[index]),
        )
        return HeldOutPuzzle(index=index, tokens_T=tokens_T, labels_T=labels_T, puzzle_id=puzzle_id)

    def __iter__(self) -> Iterator[HeldOutPuzzle]:
        return (self[index] for index in range(len(self)))

    def sample(self, count: int, seed: int = 0) -> "Questions":
        """A seeded choice of at most `count`, in the order of the source."""
        return self.at(_chosen(len(self), count, seed))

    def at(self, rows: NDArray[np.integer]) -> "Questions":
        return replace(
            self,
            tokens_NT=self.tokens_NT[rows],
            labels_NT=self.labels_NT[rows],
            puzzle_ids_N=self.puzzle_ids_N[rows],
            ratings_N=None if self.ratings_N is None else self.ratings_N[rows],
        )

    def fingerprint(self) -> str:
        """sha256 of tokens, labels and puzzle ids."""
        digest = hashlib.sha256()
        for rows in (self.tokens_NT, self.labels_NT, self.puzzle_ids_N):
            digest.update(f"{rows.shape}".encode() + np.ascontiguousarray(rows, np.int32).tobytes())
        return digest.hexdigest()

    def require_ids(self, num_puzzle_ids: int) -> None:
        """Refuse puzzles of tasks that the puzzle table of a model does not hold."""
        largest = int(self.puzzle_ids_N.max(initial=0))
        if largest >= num_puzzle_ids:
            problem = f"{self.source} has puzzle ids up to {largest} where the model knows {num_puzzle_ids}"
            raise DatasetError(f"{problem}; give the data set it was trained on")


def find_questions(
    source: str,
    puzzle: Puzzle,
    *,
    count: int,
    data: Path | None = None,
    num_workers: int = 1,
    progress: OnProgress,
) -> Questions:
    """At most `count` held-out puzzles of a name (fresh, or from `data`), or of the path of a data set or a CSV."""
    path = Path(source)
    if path.is_file():
        return questions_from_csv(path, puzzle).sample(count)
    if path.exists():
        return questions_from_data(path, puzzle, count)
    family = puzzle.name.partition("-")[0]
    if source not in {family, puzzle.name}:
        problem = f"{source} is no path and not the puzzle of the model, which is {puzzle.name}"
        raise ValueError(f"{problem}; give {family} or the path of a data set of {puzzle.name}")
    if data is not None:
        return questions_from_data(data, puzzle, count)
    return questions_made(puzzle, count, num_workers=num_workers, progress=progress)


def questions_made(
    puzzle: Puzzle,
    count: int,
    *,
    difficulty: str = MIXED,
    seed: int = SEED,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> Questions:
    """Fresh puzzles, by default of all quick difficulties; refuses puzzles that are made by people."""
    if not puzzle.difficulties:
        raise ValueError(
            f"{puzzle.name} puzzles are made by people; give the path of a data set (see hrm-data build)."
        )
    make = partial(
        generated, difficulty=difficulty, seed=seed, num_workers=num_workers, progress=progress
    )
    with TemporaryDirectory() as directory:
        made = make(puzzle, count, Path(directory), is_test=True)
    return _from_examples(made, f"fresh, {difficulty}, seed {seed}")


def questions_from_data(
    path: Path, puzzle: Puzzle, count: int | None = None, seed: int = 0
) -> Questions:
    """The test split of a data set, or a seeded choice of it; refuses one of another puzzle or of another size."""
    stated = named_in_recipe(path)  # puzzles of one size can share a vocabulary
    if stated and stated != puzzle.name:
        remedy = f"give a data set of {puzzle.name}"
        raise DatasetError(f"{path} holds {stated} where the model is for {puzzle.name}; {remedy}.")
    split = open_split(path, "test")
    if split.meta.sizes != (puzzle.vocab_size, puzzle.seq_len):
        found = f"{path} has {split.meta.seq_len} positions of {split.meta.vocab_size} tokens"
        expected = f"{puzzle.name} has {puzzle.seq_len} of {puzzle.vocab_size}"
        raise DatasetError(f"{found} where {expected}; give a data set of {puzzle.name}")
    rows = _chosen(len(split), len(split) if count is None else count, seed)
    return Questions(
        tokens_NT=split.inputs(rows),
        labels_NT=split.labels(rows),
        puzzle_ids_N=split.puzzle_ids_N[rows],
        ratings_N=None if split.ratings_N is None else split.ratings_N[rows],
        source=f"test split of {path.name}",
    )


def questions_from_csv(path: Path, puzzle: Puzzle) -> Questions:
    """All rows of a CSV file with the columns source, question, answer, rating, for puzzles that have this form."""
    return _from_examples(read_csv(path, puzzle), path.name)


def _from_examples(examples: Examples, source: str) -> Questions:
    return Questions(
        tokens_NT=examples["inputs"].astype(np.int32),
        labels_NT=examples["labels"].astype(np.int32),
        puzzle_ids_N=np.zeros(len(examples), np.int32),
        ratings_N=examples["rating"],
        source=source,
    )


def _chosen(num_rows: int, count: int, seed: int) -> NDArray[np.intp]:
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:count])
