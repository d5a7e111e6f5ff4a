"""Looking over a data set before training on it: sizes, ranges, repeats, every label checked; examples for people.

Everything is read block by block, so that sets larger than memory can be inspected.
Shapes: N examples, T tokens, B a block of examples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hrm_host.reading import json_from, text_of
from hrm_host.text import printable
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import DatasetError, DatasetMeta, Split, named_in_recipe, open_split
from hrm_puzzles.grid.board import UInt64Array, mixed
from hrm_puzzles.puzzle import UNKNOWN, WRONG, IntArray, Puzzle, WellFormed

MOST_SHOWN = 40  # numbers of givens
BLOCK = 1024

Facts = dict[str, np.typing.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What makes a split unfit, labels that are no answer at all among the wrong; and `facts` by their names."""

    split: str
    num_wrong: int
    first_wrong: int | None
    num_out_of_range: int
    facts: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """Test questions that are in train under the same puzzle id, and test examples that are copies of training ones."""

    puzzle: str
    proof_exists: bool
    splits: list[SplitReport]
    num_shared: int
    num_equivalent: int

    @property
    def faults(self) -> list[str]:
        """One sentence each. Copies are fine where no proof exists: ARC's authors repeat a pair here and there."""
        found: list[str] = []
        for part in self.splits:
            if part.num_wrong:
                first = f"the first at index {part.first_wrong}"
                found.append(f"{part.num_wrong} labels of {part.split} are wrong, {first}.")
            if part.num_out_of_range:
                found.append(
                    f"{part.num_out_of_range} values of {part.split} are outside the vocabulary."
                )
        if self.num_shared and not self.proof_exists:
            found.append(
                f"{self.num_shared} test questions stand in train under the same puzzle id."
            )
        if self.num_equivalent and self.proof_exists:
            found.append(
                f"{self.num_equivalent} test examples are training examples or symmetric copies of them."
            )
        return found


def inspect(path: Path, puzzle_name: str | None = None) -> DatasetReport:
    """Look over every split of a data set; the puzzle is found as in `puzzle_at` unless it is named."""
    names = [name for name in ("train", "test") if (path / name).is_dir()]
    if not names:
        raise DatasetError(
            f"{path} has no train or test directory; give the directory of a data set."
        )
    splits = {name: open_split(path, name) for name in names}
    puzzle = puzzle_at(path, next(iter(splits.values())).meta, puzzle_name)
    facts: dict[str, Facts] = {}
    for name, split in splits.items():
        starts = range(0, len(split), BLOCK)
        blocks = [_facts_of_block(puzzle, split, slice(start, start + BLOCK)) for start in starts]
        facts[name] = {
            fact: np.concatenate([block[fact] for block in blocks]) for fact in blocks[0]
        }
    num_shared, num_equivalent = (
        int(np.isin(facts["test"][fact], facts["train"][fact]).sum()) if len(facts) == 2 else 0
        for fact in ("example", "equivalence")
    )
    return DatasetReport(
        puzzle=puzzle.name,
        proof_exists=puzzle.proof_exists,
        splits=[_report(name, split, facts[name]) for name, split in splits.items()],
        num_shared=num_shared,
        num_equivalent=num_equivalent,
    )


def puzzle_at(path: Path, meta: DatasetMeta, name: str | None = None) -> Puzzle:
    """The puzzle of a data set: the named one, else that of its recipe, else the only registered one of its sizes."""
    sizes = f"vocabulary {meta.vocab_size} and length {meta.seq_len}"
    known = (registry.get(name) for name in ([name] if name else registry.names()))
    fitting = {
        puzzle.name: puzzle for puzzle in known if (puzzle.vocab_size, puzzle.seq_len) == meta.sizes
    }
    if not fitting:
        problem = (
            f"{path} has {sizes}, which {name} has not" if name else f"no known puzzle has {sizes}"
        )
        raise DatasetError(f"{problem}; name one of {', '.join(registry.names())} with --puzzle.")
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    named = named_in_recipe(path)
    if named in fitting:
        return fitting[named]
    raise DatasetError(
        f"{' and '.join(fitting)} have {sizes}; say which one {path} is with --puzzle."
    )


def _report(name: str, split: Split, facts: Facts) -> SplitReport:
    wrong = np.flatnonzero(facts["is_wrong"])
    givens, counts = np.unique(facts["givens"], return_counts=True)
    return SplitReport(
        split=name,
        num_wrong=len(wrong),
        first_wrong=int(wrong[0]) if len(wrong) else None,
        num_out_of_range=int(facts["num_outside"].sum()),
        facts={
            "examples": len(split),
            "puzzles": len(split.puzzle_offsets) - 1,
            "groups": len(split.group_offsets) - 1,
            "puzzle ids": len(np.unique(split.puzzle_ids_N)),
            "examples of a group": _quantiles(np.diff(split.puzzle_offsets[split.group_offsets])),
            "tokens": (int(split.inputs_NT.min()), int(split.inputs_NT.max())),
            "labels": (int(split.labels_NT.min()), int(split.labels_NT.max())),
            "givens": dict(zip(givens.tolist(), counts.tolist(), strict=True)),
            "filled positions of a label": _quantiles(facts["length"]),
            "rating": None if split.ratings_N is None else _quantiles(split.ratings_N),
            "questions that stand there before": len(split) - len(np.unique(facts["question"])),
        },
    )


def _facts_of_block(puzzle: Puzzle, split: Split, block: slice) -> Facts:
    """What is known of each example, [B] each; disproven labels are wrong, and those that are no answer at all."""
    inputs_BT, labels_BT = (
        np.asarray(rows_NT[block]) for rows_NT in (split.inputs_NT, split.labels_NT)
    )
    ids_B1 = split.puzzle_ids_N[block, None]
    verdict_B = puzzle.check_BT(inputs_BT, labels_BT)
    is_wrong_B = verdict_B == WRONG
    if isinstance(puzzle, WellFormed):
        is_wrong_B |= (verdict_B == UNKNOWN) & ~puzzle.is_well_formed_B(labels_BT)
    num_outside_B = np.zeros(len(inputs_BT), dtype=np.int32)
    for tokens_BT in (inputs_BT, labels_BT):
        num_outside_B += ((tokens_BT < 0) | (tokens_BT >= puzzle.vocab_size)).sum(
            axis=1, dtype=np.int32
        )
    return {
        "is_wrong": is_wrong_B,
        "givens": (inputs_BT == labels_BT).sum(axis=1, dtype=np.int32),
        "length": (labels_BT != split.meta.pad_id).sum(axis=1, dtype=np.int32),
        "num_outside": num_outside_B,
        "question": _row_number_B(inputs_BT),
        "example": _row_number_B(np.concatenate([ids_B1, inputs_BT], axis=1)),
        "equivalence": puzzle.equivalence_hash_B(inputs_BT, labels_BT),
    }


def _row_number_B(values_BT: IntArray) -> UInt64Array:
    """A number of 64 bits that equal rows share, and different rows practically never."""
    place_T = mixed(np.arange(values_BT.shape[1], dtype=np.uint64), salt=6)
    return mixed(mixed(values_BT.astype(np.uint64) + place_T).sum(axis=1))


def _quantiles(values: IntArray) -> dict[str, int]:
    shares = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "greatest": 1.0}
    return {name: int(np.quantile(values, share, method="lower")) for name, share in shares.items()}


def report_text(report: DatasetReport) -> str:
    """The facts of each split, one a line, what the splits share, and the faults."""
    lines = [f"puzzle {report.puzzle}"]
    for part in report.splits:
        lines.append(f"{part.split}:")
        for name, fact in part.facts.items():
            many = (
                [f"{key}: {count}" for key, count in fact.items()]
                if isinstance(fact, dict)
                else [str(fact)]
            )
            shown = ", ".join(many[:MOST_SHOWN]) + (", ..." if len(many) > MOST_SHOWN else "")
            lines.append(f"  {name}: {shown}")
    lines.append(
        f"test examples also in train: {report.num_shared}, in any symmetric copy: {report.num_equivalent}"
    )
    return "\n".join([*lines, *([f"FAULT: {fault}" for fault in report.faults] or ["no faults"])])


def _names_at(path: Path) -> list[object]:
    """The names of the puzzle ids; none where they cannot be read, and titles then give the number."""
    try:
        names: object = json_from(text_of(path / "identifiers.json"))
    except (OSError, ValueError):
        return []
    return cast("list[object]", names) if isinstance(names, list) else []


def read_examples(
    path: Path, split: str, first: int, count: int, puzzle_name: str | None
) -> list[str]:
    """Examples as text: that at `first`, then the first ones of later groups; refuses an index beyond the end."""
    examples = open_split(path, split)
    if first >= len(examples):
        raise DatasetError(
            f"{split} has {len(examples)} examples, so there is no index {first}; give a smaller one."
        )
    puzzle = puzzle_at(path, examples.meta, puzzle_name)
    names = _names_at(path)
    starts = examples.puzzle_offsets[examples.group_offsets[:-1]]
    found: list[str] = []
    for index in [first, *starts[starts > first].tolist()[: count - 1]]:
        known = [f"{split} {index}"]
        number = int(examples.puzzle_ids_N[index])
        if number:
            known.append(
                printable(str(names[number])) if number < len(names) else f"puzzle id {number}"
            )
        if examples.ratings_N is not None:
            known.append(f"rating {examples.ratings_N[index]}")
        question, answer = (
            puzzle.decode(tokens_NT[index])
            for tokens_NT in (examples.inputs_NT, examples.labels_NT)
        )
        found.append(
            "\n\n".join(
                (puzzle.render(question), puzzle.render(answer, question), ", ".join(known))
            )
        )
    return found
