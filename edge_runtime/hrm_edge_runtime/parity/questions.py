"""Where the puzzles of a comparison come from, one after another: golden traces, a data set's test split, or fresh.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.bundle import Bundle, Golden
from hrm_puzzles import datasets
from hrm_puzzles.generation import MIXED, difficulties_of
from hrm_puzzles.puzzle import Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """One puzzle with its label (negative where any answer will do); `index` finds it again in its source."""

    index: int
    tokens_T: NDArray[np.int32]
    labels_T: NDArray[np.int32]
    puzzle_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """`count` puzzles that can be gone through again and again, always the same."""

    name: str
    count: int
    begin: Callable[[], Iterator[Asked]]

    def __iter__(self) -> Iterator[Asked]:
        return self.begin()

    def find(self, index: int) -> Asked:
        return next(asked for asked in self if asked.index == index)


def golden_source(golden: Golden) -> Source:
    """The puzzles of the golden traces, in their order."""

    def begin() -> Iterator[Asked]:
        columns = zip(golden.tokens_BT, golden.labels_BT, golden.puzzle_ids_B.tolist(), strict=True)
        for index, (tokens_T, labels_T, puzzle_id) in enumerate(columns):
            yield Asked(index=index, tokens_T=tokens_T, labels_T=labels_T, puzzle_id=puzzle_id)

    return Source(name="golden traces", count=len(golden.tokens_BT), begin=begin)


def held_out_source(directory: Path, bundle: Bundle, count: int, seed: int) -> Source:
    """A seeded choice from a data set's test split; refuses a data set of another puzzle or with other tasks."""
    split = datasets.open_split(directory, "test")
    manifest = bundle.manifest
    found, expected = (split.meta.seq_len, split.meta.vocab_size), (manifest.seq_len, manifest.vocab_size)
    if found != expected or int(split.puzzle_ids_N.max()) >= manifest.num_puzzle_ids:
        raise datasets.DatasetError(
            f"{directory} has {found[0]} positions of {found[1]} tokens and puzzle ids up to "
            f"{split.puzzle_ids_N.max()} where the bundle has {expected[0]} of {expected[1]} and "
            f"{manifest.num_puzzle_ids} ids; give the data set it was trained on."
        )
    chosen_N = np.sort(np.random.default_rng(seed).permutation(len(split))[:count])

    def begin() -> Iterator[Asked]:
        for row in chosen_N.tolist():
            part = slice(row, row + 1)
            yield Asked(
                index=row,
                tokens_T=split.inputs(part)[0],
                labels_T=split.labels(part)[0],
                puzzle_id=int(split.puzzle_ids_N[row]),
            )

    return Source(name=f"test split of {directory.name}", count=len(chosen_N), begin=begin)


def generated_source(puzzle: Puzzle, count: int, seed: int) -> Source:
    """Fresh puzzles, going round the difficulties that are quick to make; all have puzzle id 0."""
    names = difficulties_of(puzzle, MIXED)

    def begin() -> Iterator[Asked]:
        rng = np.random.default_rng(seed)
        for index in range(count):
            example = puzzle.generate(rng, names[index % len(names)])
            tokens_T, labels_T = puzzle.encode(example.question), puzzle.encode(example.answer)
            yield Asked(index=index, tokens_T=tokens_T, labels_T=labels_T, puzzle_id=0)

    return Source(name=f"fresh, seed {seed}", count=count, begin=begin)
