"""Looking over a data set before anything is trained on it: sizes, ranges, repeats, and every label checked.

Shapes: N examples, T tokens, B a block of examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles import registry
from hrm_puzzles.datasets import DatasetError, DatasetMeta, Split, open_split
from hrm_puzzles.puzzle import WRONG, Puzzle

BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """`givens` counts the examples with so many positions given; `num_repeats` those that stand there before."""

    split: str
    num_examples: int
    num_groups: int
    token_range: tuple[int, int]
    label_range: tuple[int, int]
    givens: dict[int, int]
    rating_quantiles: dict[str, int] | None
    num_wrong: int
    first_wrong: int | None
    num_out_of_range: int
    num_repeats: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """`num_shared` test examples stand in the training split as they are, `num_equivalent` in any symmetric copy."""

    puzzle: str
    splits: list[SplitReport]
    num_shared: int
    num_equivalent: int

    @property
    def faults(self) -> list[str]:
        """What must not be, one sentence each."""
        found: list[str] = []
        for part in self.splits:
            if part.num_wrong:
                found.append(
                    f"{part.num_wrong} labels of {part.split} are wrong, the first at index {part.first_wrong}."
                )
            if part.num_out_of_range:
                found.append(f"{part.num_out_of_range} values of {part.split} are outside the vocabulary.")
        if self.num_equivalent:
            found.append(f"{self.num_equivalent} test examples are training examples or symmetric copies of them.")
        return found


def inspect(path: Path, puzzle_name: str | None = None) -> Report:
    """Look over every split that is there; the puzzle is told from its sizes unless it is named."""
    names = [name for name in ("train", "test") if (path / name).is_dir()]
    if not names:
        raise DatasetError(f"{path} has no train or test directory; give the directory of a data set.")
    splits = {name: open_split(path, name) for name in names}
    puzzle = registry.get(puzzle_name) if puzzle_name else puzzle_of(next(iter(splits.values())).meta)
    hashes = {name: _hashes(puzzle, split) for name, split in splits.items()}
    rows = {name: _row_keys(split) for name, split in splits.items()}
    return Report(
        puzzle=puzzle.name,
        splits=[_report(puzzle, name, split, rows[name]) for name, split in splits.items()],
        num_shared=_num_shared(rows),
        num_equivalent=_num_shared(hashes),
    )


def puzzle_of(meta: DatasetMeta) -> Puzzle:
    """The registered puzzle with the vocabulary and length of a data set."""
    for name in registry.names():
        puzzle = registry.get(name)
        if (puzzle.vocab_size, puzzle.seq_len) == (meta.vocab_size, meta.seq_len):
            return puzzle
    sizes = f"vocabulary {meta.vocab_size} and length {meta.seq_len}"
    raise DatasetError(f"no known puzzle has {sizes}; name one of {', '.join(registry.names())} with --puzzle.")


def _report(puzzle: Puzzle, name: str, split: Split, rows: NDArray[np.void]) -> SplitReport:
    wrong = _wrong(puzzle, split)
    ranges = [(int(array.min()), int(array.max())) for array in (split.inputs_NT, split.labels_NT)]
    return SplitReport(
        split=name,
        num_examples=len(split),
        num_groups=len(split.group_offsets) - 1,
        token_range=ranges[0],
        label_range=ranges[1],
        givens=_givens(split),
        rating_quantiles=_quantiles(split),
        num_wrong=len(wrong),
        first_wrong=int(wrong[0]) if len(wrong) else None,
        num_out_of_range=sum(_num_outside(array, puzzle) for array in (split.inputs_NT, split.labels_NT)),
        num_repeats=len(rows) - len(np.unique(rows)),
    )


def _blocks(split: Split) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, len(split), BLOCK))


def _wrong(puzzle: Puzzle, split: Split) -> NDArray[np.intp]:
    verdicts = [puzzle.check_BT(split.inputs_NT[block], split.labels_NT[block]) for block in _blocks(split)]
    return np.flatnonzero(np.concatenate(verdicts) == WRONG)


def _hashes(puzzle: Puzzle, split: Split) -> NDArray[np.uint64]:
    parts = [puzzle.equivalence_hash_B(split.inputs_NT[block], split.labels_NT[block]) for block in _blocks(split)]
    return np.concatenate(parts)


def _givens(split: Split) -> dict[int, int]:
    counts = [(split.inputs_NT[block] == split.labels_NT[block]).sum(axis=1) for block in _blocks(split)]
    values, numbers = np.unique(np.concatenate(counts), return_counts=True)
    return dict(zip(values.tolist(), numbers.tolist(), strict=True))


def _quantiles(split: Split) -> dict[str, int] | None:
    if split.ratings_N is None:
        return None
    names = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "greatest": 1.0}
    return {name: int(np.quantile(split.ratings_N, share, method="lower")) for name, share in names.items()}


def _num_outside(array: NDArray[np.integer], puzzle: Puzzle) -> int:
    return int(((array < 0) | (array >= puzzle.vocab_size)).sum())


def _row_keys(split: Split) -> NDArray[np.void]:
    """One comparable value for each example, questions only: a question has one answer."""
    rows = np.ascontiguousarray(split.inputs_NT, dtype=np.int16)
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)


def _num_shared(keys: dict[str, NDArray[np.void]] | dict[str, NDArray[np.uint64]]) -> int:
    """How many test examples stand in the training split."""
    if len(keys) < 2:
        return 0
    return int(np.isin(keys["test"], keys["train"]).sum())
