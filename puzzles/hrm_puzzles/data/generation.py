"""Many puzzles generated in parallel: the same for a seed whatever the number of workers, continued where it stopped.

The work is cut into chunks, each with a random stream of its own and a file of its own.
Shapes: N examples, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_host import atomic
from hrm_host.progress import OnProgress
from hrm_host.workers import results_of
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle, PuzzleError

CHUNK = 64  # puzzles: seconds of work, so that little is lost and progress is seen
HELD_OUT = 4  # one equivalence class in so many belongs to test splits, whatever the seed
MIXED = "mixed"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Examples as they stand in a data set; `ratings_N` measure their difficulty."""

    inputs_NT: NDArray[np.uint8]
    labels_NT: NDArray[np.uint8]
    ratings_N: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ratings_N)

    def at(self, index: NDArray[Any]) -> Rows:
        return Rows(inputs_NT=self.inputs_NT[index], labels_NT=self.labels_NT[index], ratings_N=self.ratings_N[index])


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """`count` puzzles of a split; test splits take the held-out classes, training splits the others."""

    puzzle: str
    difficulty: str
    seed: int
    is_test: bool
    index: int
    count: int

    @property
    def file_name(self) -> str:
        return f"{'test' if self.is_test else 'train'}-{self.index:06d}.npz"


def chunks_of(puzzle: str, difficulty: str, seed: int, *, is_test: bool, count: int) -> list[Chunk]:
    return [
        Chunk(
            puzzle=puzzle,
            difficulty=difficulty,
            seed=seed,
            is_test=is_test,
            index=start // CHUNK,
            count=min(CHUNK, count - start),
        )
        for start in range(0, count, CHUNK)
    ]


def generate_chunks(chunks: list[Chunk], directory: Path, *, num_workers: int, progress: OnProgress) -> None:
    """Bring the file of every chunk into being; those that are there already are kept."""
    directory.mkdir(parents=True, exist_ok=True)
    missing = [chunk for chunk in chunks if not (directory / chunk.file_name).exists()]
    total = sum(chunk.count for chunk in chunks)
    done = total - sum(chunk.count for chunk in missing)
    progress(done, total)
    for count in results_of(partial(_make_chunk, directory=directory), missing, num_workers=num_workers):
        done += count
        progress(done, total)


def read_chunk(chunk: Chunk, directory: Path) -> Rows:
    with np.load(directory / chunk.file_name, allow_pickle=False) as arrays:
        return Rows(inputs_NT=arrays["inputs"], labels_NT=arrays["labels"], ratings_N=arrays["ratings"])


def difficulties_of(puzzle: Puzzle, difficulty: str) -> list[str]:
    """One difficulty, several with commas, or "mixed": all but "extreme", whose making takes far longer."""
    quick = [name for name in puzzle.difficulties if name != "extreme"]
    chosen = quick if difficulty == MIXED else difficulty.split(",")
    for name in chosen:
        if name not in puzzle.difficulties:
            remedy = f"use {MIXED}, or one or more of {', '.join(puzzle.difficulties)}"
            raise PuzzleError(f"{puzzle.name} has no difficulty {name!r}", "unknown-difficulty", remedy)
    return chosen


def is_held_out_N(puzzle: Puzzle, inputs_NT: NDArray[np.uint8], labels_NT: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which examples may stand in test splits only; a rule over equivalence classes, the same for every build."""
    return puzzle.equivalence_hash_B(inputs_NT, labels_NT) % np.uint64(HELD_OUT) == 0


def _make_chunk(chunk: Chunk, directory: Path) -> int:
    """Generate one chunk into its file; runs in a worker process."""
    puzzle = registry.get(chunk.puzzle)
    rng = np.random.default_rng(np.random.SeedSequence(chunk.seed, spawn_key=(int(chunk.is_test), chunk.index)))
    names = difficulties_of(puzzle, chunk.difficulty)
    rows = [_one_row(puzzle, rng, str(rng.choice(names)), is_test=chunk.is_test) for _ in range(chunk.count)]
    inputs, labels, ratings = zip(*rows, strict=True)
    with atomic.new_file(directory / chunk.file_name) as unfinished, unfinished.open("wb") as file:
        ratings_N = np.array(ratings, dtype=np.int32)
        np.savez(file, inputs=np.stack(inputs), labels=np.stack(labels), ratings=ratings_N)
    return chunk.count


def _one_row(
    puzzle: Puzzle, rng: np.random.Generator, difficulty: str, *, is_test: bool
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    while True:
        example = puzzle.generate(rng, difficulty)
        inputs_T = puzzle.encode(example.question).astype(np.uint8)
        labels_T = puzzle.encode(example.answer).astype(np.uint8)
        if is_held_out_N(puzzle, inputs_T[None], labels_T[None])[0] == is_test:
            return inputs_T, labels_T, example.rating
