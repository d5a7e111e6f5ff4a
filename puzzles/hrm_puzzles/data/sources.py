"""Examples from generators, CSV files and the Hugging Face hub.

Puzzles are generated in parallel. A seed gives the same puzzles for any number of workers, and a
stopped build continues: the work is cut into chunks, each with its own random stream and file.
`Questions` are held out of training: fresh questions and the test split of a data set share no
puzzle with a training split. A CSV file may hold any puzzles.
Shapes: N examples, T tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_host import atomic, workers
from hrm_host.progress import OnProgress, unheard
from hrm_host.reading import counted
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.examples import Examples, example_type, read_examples
from hrm_puzzles.puzzle import (
    BoolArray,
    Example,
    Int32Array,
    IntArray,
    IntpArray,
    Puzzle,
    require_difficulty,
)
from hrm_puzzles.reading.legend import Lettered

CHUNK = 64  # puzzles; seconds of work, so a stop loses little and progress is visible
HELD_OUT = 4  # one equivalence class in 4 belongs to test splits, whatever the seed
MIXED = "mixed"
SLOW = "extreme"  # the difficulty that takes far longer to generate
HUB = "hub:"
BY_HAND = "download train.csv and test.csv by hand and pass them with --csv-train and --csv-test"
# Seed of fresh questions. Their classes are held out of training whatever the seed is.
SEED = 20_017


class _Chunk(NamedTuple):
    """A part of a split that one worker generates."""

    file: Path
    number: int
    size: int


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
    """Generate `count` puzzles. Test splits take the held-out classes.

    A chunk whose file is already in `directory` is not generated again.
    """
    split = "test" if is_test else "train"
    chunks: list[_Chunk] = []
    for number, start in enumerate(range(0, count, CHUNK)):
        file = directory / f"{split}-{number:06d}.npy"
        chunks.append(_Chunk(file, number, min(CHUNK, count - start)))
    missing = [chunk for chunk in chunks if not chunk.file.exists()]
    if missing:
        directory.mkdir(parents=True, exist_ok=True)
    num_done = count - sum(chunk.size for chunk in missing)
    progress(num_done, count)
    make = partial(_make_chunk, puzzle.name, difficulty, seed, is_test)
    for size in workers.results_of(make, missing, num_workers=num_workers):
        num_done += size
        progress(num_done, count)
    parts = [np.zeros(0, dtype=example_type(puzzle))]
    for chunk in chunks:
        parts.append(np.load(chunk.file, allow_pickle=False))
    return np.concatenate(parts)


def _make_chunk(name: str, difficulty: str, seed: int, is_test: bool, chunk: _Chunk) -> int:
    """Generate one chunk into its file, from its own stream. This runs in a worker process."""
    puzzle = registry.get(name)
    stream_seed = np.random.SeedSequence(seed, spawn_key=(int(is_test), chunk.number))
    rng = np.random.default_rng(stream_seed)
    names = difficulties_of(puzzle, difficulty)
    rows = np.zeros(chunk.size, dtype=example_type(puzzle))
    for number in range(chunk.size):
        drawn = str(rng.choice(names))
        example = fresh(puzzle, rng, drawn, is_test=is_test)
        question_T = puzzle.encode(example.question)
        answer_T = puzzle.encode(example.answer)
        rows[number] = (question_T, answer_T, example.rating)
    with atomic.new_file(chunk.file) as unfinished:
        atomic.write_array(unfinished, rows)
    return chunk.size


def difficulties_of(puzzle: Puzzle, difficulty: str) -> list[str]:
    """One difficulty, several separated by commas, or "mixed": all except the slow one."""
    if difficulty == MIXED:
        return [name for name in puzzle.difficulties if name != SLOW]
    chosen = difficulty.split(",")
    for name in chosen:
        require_difficulty(name, puzzle.difficulties)
    return chosen


def is_held_out_N(puzzle: Puzzle, inputs_NT: IntArray, labels_NT: IntArray) -> BoolArray:
    """Whether each example may appear only in test splits.

    The rule depends on the equivalence class, so it is the same for every build.
    """
    hash_N = puzzle.equivalence_hash_B(inputs_NT, labels_NT)
    return hash_N % np.uint64(HELD_OUT) == 0


def fresh(puzzle: Puzzle, rng: np.random.Generator, difficulty: str, *, is_test: bool) -> Example:
    """Generate a puzzle that may appear in test splits, or one that may not."""
    while True:
        example = puzzle.generate(rng, difficulty)
        inputs_1T = puzzle.encode(example.question)[None]
        labels_1T = puzzle.encode(example.answer)[None]
        if is_held_out_N(puzzle, inputs_1T, labels_1T)[0] == is_test:
            return example


def downloaded(
    source: str,
    *files: str,
    repo_type: str = "dataset",
    by_hand: str = BY_HAND,
) -> list[Path]:
    """Download files of `hub:ORG/NAME` once, by default train.csv and test.csv.

    Raises DatasetError with one sentence for every failure.
    """
    name = source.removeprefix(HUB)
    if not source.startswith(HUB) or name.count("/") != 1:
        remedy = f"write {HUB}ORG/NAME, as in {HUB}sapientinc/sudoku-extreme"
        raise DatasetError(f"{source!r} is not a source; {remedy}.")
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        problem = f"{source} needs the package huggingface_hub, which is missing"
        remedy = f"install it with pip install 'hrm-edge[hub]', or {by_hand}"
        raise DatasetError(f"{problem}; {remedy}.") from error
    wanted = files or ("train.csv", "test.csv")
    try:
        return [Path(hf_hub_download(name, file, repo_type=repo_type)) for file in wanted]
    except Exception as error:  # its HTTP library raises errors of its own
        text = str(error).strip() or type(error).__name__
        reason = text.splitlines()[0].rstrip(".")
        remedy = f"check the name and the network, or {by_hand}"
        raise DatasetError(f"cannot fetch {source} ({reason}); {remedy}.") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutPuzzle:
    """One puzzle with its label. `index` is its place in the collection.

    A label is negative at positions where any answer is accepted.
    """

    index: int
    tokens_T: Int32Array
    labels_T: Int32Array
    puzzle_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Held-out puzzles with their labels, their ratings if known, and the name of their source.

    A label is negative at positions where any answer is accepted.
    """

    tokens_NT: Int32Array
    labels_NT: Int32Array
    puzzle_ids_N: Int32Array
    ratings_N: Int32Array | None = None
    source: str

    def __len__(self) -> int:
        return len(self.tokens_NT)

    @property
    def title(self) -> str:
        return f"{counted(len(self), 'puzzle')} ({self.source})"

    def __getitem__(self, index: int) -> HeldOutPuzzle:
        return HeldOutPuzzle(
            index=index,
            tokens_T=self.tokens_NT[index],
            labels_T=self.labels_NT[index],
            puzzle_id=int(self.puzzle_ids_N[index]),
        )

    def __iter__(self) -> Iterator[HeldOutPuzzle]:
        for index in range(len(self)):
            yield self[index]

    def sample(self, count: int, seed: int = 0) -> "Questions":
        """A seeded choice of at most `count` puzzles, in the order of the source."""
        return self.at(chosen_rows(len(self), count, seed))

    def at(self, rows: NDArray[np.integer]) -> "Questions":
        return replace(
            self,
            tokens_NT=self.tokens_NT[rows],
            labels_NT=self.labels_NT[rows],
            puzzle_ids_N=self.puzzle_ids_N[rows],
            ratings_N=None if self.ratings_N is None else self.ratings_N[rows],
        )

    def require_ids(self, num_puzzle_ids: int) -> None:
        """Raise DatasetError if the puzzle table of a model lacks some puzzle ids."""
        largest = int(self.puzzle_ids_N.max(initial=0))
        if largest >= num_puzzle_ids:
            known = f"the model knows {num_puzzle_ids}"
            problem = f"{self.source} has puzzle ids up to {largest}, but {known}"
            raise DatasetError(f"{problem}; give the data set it was trained on")


def find_questions(
    source: str,
    puzzle: Puzzle,
    *,
    count: int,
    data: Path | None = None,
    columns: str | None = None,
    num_workers: int = 1,
    progress: OnProgress,
) -> Questions:
    """At most `count` held-out puzzles.

    `source` is the path of a data set or a file of puzzles, or the name of the puzzle. With a name,
    the puzzles come from the data set `data`, or they are fresh. `columns` are those of a file.
    """
    path = Path(source)
    if path.is_file():
        return questions_from_file(path, puzzle, columns).sample(count)
    if path.exists():
        return questions_from_data(path, puzzle, count)
    family, _, _ = puzzle.name.partition("-")
    if source not in (family, puzzle.name):
        problem = f"{source} is neither a path nor the puzzle of the model, which is {puzzle.name}"
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
    """Fresh puzzles, by default of all quick difficulties.

    Raises ValueError for puzzles that are made by people.
    """
    if not puzzle.difficulties:
        problem = f"{puzzle.name} puzzles are made by people"
        raise ValueError(f"{problem}; give the path of a data set (see hrm-data build).")
    with TemporaryDirectory() as directory:
        made = generated(
            puzzle,
            count,
            Path(directory),
            is_test=True,
            difficulty=difficulty,
            seed=seed,
            num_workers=num_workers,
            progress=progress,
        )
    return _from_examples(made, f"fresh, {difficulty}, seed {seed}")


def questions_from_data(
    path: Path,
    puzzle: Puzzle,
    count: int | None = None,
    seed: int = 0,
) -> Questions:
    """The test split of a data set, or `count` of its puzzles drawn with `seed`.

    Raises DatasetError for a data set of another puzzle or of another size.
    """
    split = open_split(path, "test", puzzle)
    rows = chosen_rows(len(split), len(split) if count is None else count, seed)
    return Questions(
        tokens_NT=split.inputs(rows),
        labels_NT=split.labels(rows),
        puzzle_ids_N=split.puzzle_ids_N[rows],
        ratings_N=None if split.ratings_N is None else split.ratings_N[rows],
        source=f"test split of {path.name}",
    )


def questions_from_file(path: Path, puzzle: Puzzle, columns: str | None = None) -> Questions:
    """All puzzles of a file, for puzzles without tasks."""
    if not isinstance(puzzle, Lettered):
        problem = f"{path}: a file of {puzzle.name} puzzles does not say what its model has learned"
        raise DatasetError(f"{problem}; give its data set.")
    return _from_examples(read_examples(path, puzzle, columns).rows, path.name)


def _from_examples(examples: Examples, source: str) -> Questions:
    return Questions(
        tokens_NT=examples["inputs"].astype(np.int32),
        labels_NT=examples["labels"].astype(np.int32),
        puzzle_ids_N=np.zeros(len(examples), np.int32),
        ratings_N=examples["rating"],
        source=source,
    )


def chosen_rows(num_rows: int, count: int, seed: int | np.random.SeedSequence) -> IntpArray:
    """A seeded choice of at most `count` rows, in rising order."""
    order = np.random.default_rng(seed).permutation(num_rows)
    return np.sort(order[:count])
