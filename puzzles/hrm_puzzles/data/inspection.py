"""Inspect a data set before training: sizes, ranges, repeats and every label; an example.

Everything is read block by block, so data sets may be larger than memory.
Shapes: N examples, T tokens, B a block of examples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import counted
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import (
    SPLITS,
    DatasetError,
    Split,
    identifiers_at,
    open_split,
    recipe_at,
)
from hrm_puzzles.data.examples import num_ambiguous_in
from hrm_puzzles.puzzle import UNKNOWN, WRONG, BoolArray, Int64Array, IntArray, Puzzle, Voting

BLOCK = 1024  # examples that are read at once
Facts = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """The faults of a split, and its facts by name.

    `num_wrong` includes malformed labels. `num_ambiguous` counts questions with several solutions,
    among at most `examples.MAX_JUDGED`. `num_puzzle_ids` is what dataset.json claims, `num_names`
    the number of names in identifiers.json, or of ids in use if it cannot be read.
    """

    split: str
    num_wrong: int
    first_wrong: int | None
    num_out_of_range: int
    num_ambiguous: int
    num_puzzle_ids: int
    num_names: int
    facts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """The reports of all splits, and what they share.

    `num_shared` counts test questions that are in train under the same puzzle id.
    `num_equivalent` counts test examples that are copies of training examples.
    """

    puzzle: str
    proof_exists: bool
    splits: list[SplitReport]
    num_shared: int
    num_equivalent: int

    @property
    def faults(self) -> list[str]:
        """One sentence for each fault.

        Copies are allowed for puzzles without proofs: ARC's authors repeat a few pairs.
        """
        found: list[str] = []
        names = [part.split for part in self.splits]
        for name in SPLITS:
            if name not in names:
                found.append(f"the split {name} is missing, and hrm-train needs both.")
        for part in self.splits:
            if part.num_ambiguous:
                questions = counted(part.num_ambiguous, "question")
                found.append(f"{part.split} has {questions} with more than one solution.")
            if part.num_wrong:
                first = f"the first at index {part.first_wrong}"
                labels = counted(part.num_wrong, "wrong label")
                found.append(f"{part.split} has {labels}, {first}.")
            if part.num_out_of_range:
                values = counted(part.num_out_of_range, "value")
                found.append(f"{part.split} has {values} outside the vocabulary.")
            if part.num_puzzle_ids != part.num_names:
                claimed = f"{part.num_puzzle_ids} puzzle identifiers"
                found.append(f"{part.split} claims {claimed}, but {part.num_names} have names.")
        if self.num_shared and not self.proof_exists:
            questions = f"{self.num_shared} test questions"
            found.append(f"{questions} are in train under the same puzzle id.")
        if self.num_equivalent and self.proof_exists:
            examples = f"{self.num_equivalent} test examples"
            found.append(f"{examples} are training examples or symmetric copies of them.")
        return found


def inspect(path: Path, puzzle_name: str | None = None) -> DatasetReport:
    """Inspect every split of a data set. Without a name, its recipe names the puzzle."""
    names = [name for name in SPLITS if (path / name).is_dir()]
    if not names:
        problem = f"{path} has neither a train nor a test directory"
        raise DatasetError(f"{problem}; give the directory of a data set.")
    puzzle = _puzzle_of(path, puzzle_name)
    facts: dict[str, Facts] = {}
    reports: list[SplitReport] = []
    for name in names:
        split = open_split(path, name, puzzle)
        facts[name] = _facts(split)
        num_names = _num_names(path) or int(split.puzzle_ids_N.max()) + 1
        reports.append(_report(split, facts[name], num_names))
    return DatasetReport(
        puzzle=puzzle.name,
        proof_exists=puzzle.proof_exists,
        splits=reports,
        num_shared=_num_shared(facts, "example"),
        num_equivalent=_num_shared(facts, "equivalence"),
    )


def _num_shared(facts: dict[str, Facts], fact: str) -> int:
    """The number of test examples whose hash `fact` also occurs in train."""
    if len(facts) < 2:
        return 0
    is_shared_N = np.isin(facts["test"][fact], facts["train"][fact])
    return int(is_shared_N.sum())


def _puzzle_of(path: Path, name: str | None) -> Puzzle:
    """The named puzzle of a data set, else that of its recipe."""
    name = name or str(recipe_at(path).get("puzzle", ""))
    if not name:
        remedy = f"name one of {', '.join(registry.names())} with --puzzle"
        raise DatasetError(f"{path} does not name its puzzle; {remedy}.")
    return registry.get(name)


def _report(split: Split, facts: Facts, num_names: int) -> SplitReport:
    wrong: list[int] = np.flatnonzero(facts["is_wrong"]).tolist()
    num_ambiguous, _ = num_ambiguous_in(split.puzzle, split.inputs_NT)
    named = {
        "examples": len(split),
        "puzzles": len(split.puzzle_offsets) - 1,
        "groups": split.num_groups,
        "puzzle ids": len(np.unique(split.puzzle_ids_N)),
        "repeated questions": len(split) - len(np.unique(facts["question"])),
    }
    return SplitReport(
        split=split.name,
        num_wrong=len(wrong),
        first_wrong=next(iter(wrong), None),
        num_out_of_range=int(facts["num_outside"].sum()),
        num_ambiguous=num_ambiguous,
        num_puzzle_ids=split.num_puzzle_ids,
        num_names=num_names,
        facts=named,
    )


def _facts(split: Split) -> Facts:
    """The facts of each example, [N] each."""
    blocks: list[Facts] = []
    for start in range(0, len(split), BLOCK):
        block = slice(start, start + BLOCK)
        blocks.append(_facts_of_block(split, block))
    joined: Facts = {}
    for fact in blocks[0]:
        joined[fact] = np.concatenate([found[fact] for found in blocks])
    return joined


def _facts_of_block(split: Split, block: slice) -> Facts:
    """The facts of each example, [B] each. A label is wrong if it is disproven or malformed."""
    puzzle = split.puzzle
    inputs_BT = np.asarray(split.inputs_NT[block])
    labels_BT = _counting_BT(split, inputs_BT, np.asarray(split.labels_NT[block]))
    ids_B1 = split.puzzle_ids_N[block, None]
    numbered_inputs_BT = np.concatenate([ids_B1, inputs_BT], axis=1)
    both_BT = np.concatenate([inputs_BT, labels_BT], axis=1)
    is_outside_BT = (both_BT < 0) | (both_BT >= puzzle.vocab_size)
    return {
        "is_wrong": _is_wrong_B(puzzle, inputs_BT, labels_BT),
        "num_outside": is_outside_BT.sum(axis=1, dtype=np.int32),
        "question": _hash_B(inputs_BT),
        "example": _hash_B(numbered_inputs_BT),
        "equivalence": puzzle.equivalence_hash_B(inputs_BT, labels_BT),
    }


def _counting_BT(split: Split, inputs_BT: IntArray, labels_BT: IntArray) -> IntArray:
    """The labels, with the question or the pad token where training ignores a label."""
    ignored = split.meta.ignore_label_id
    if ignored is None:
        return labels_BT
    unjudged = inputs_BT if split.puzzle.proof_exists else split.meta.pad_id
    return np.where(labels_BT == ignored, unjudged, labels_BT)


def _is_wrong_B(puzzle: Puzzle, inputs_BT: IntArray, labels_BT: IntArray) -> BoolArray:
    verdict_B = puzzle.check_BT(inputs_BT, labels_BT)
    is_wrong_B = verdict_B == WRONG
    if isinstance(puzzle, Voting):
        is_malformed_B = ~puzzle.is_well_formed_B(labels_BT)
        is_wrong_B |= (verdict_B == UNKNOWN) & is_malformed_B
    return is_wrong_B


def _hash_B(values_BT: IntArray) -> Int64Array:
    """A hash of 64 bits of each row, the same within a process."""
    return np.array([hash(row.tobytes()) for row in values_BT.astype(np.int32)])


def report_text(report: DatasetReport) -> str:
    """The facts of each split, one per line, what the splits share, and the faults."""
    lines = [f"puzzle {report.puzzle}"]
    for part in report.splits:
        lines.append(f"{part.split}:")
        for name, fact in part.facts.items():
            lines.append(f"  {name}: {fact}")
    shared = f"test examples also in train: {report.num_shared}"
    lines.append(f"{shared}, in any symmetric copy: {report.num_equivalent}")
    for fault in report.faults:
        lines.append(f"FAULT: {fault}")
    if not report.faults:
        lines.append("no faults")
    return "\n".join(lines)


def _num_names(path: Path) -> int:
    """The number of names of puzzle ids; 0 if they cannot be read."""
    try:
        return len(identifiers_at(path))
    except DatasetError:
        return 0


def example_text(path: Path, part: SplitReport, puzzle_name: str) -> str:
    """The first example with a wrong label, or the first one, with what else is known about it."""
    puzzle = registry.get(puzzle_name)
    split = open_split(path, part.split, puzzle)
    index = part.first_wrong or 0
    question = puzzle.decode(split.inputs_NT[index])
    answer = puzzle.decode(split.labels_NT[index])
    title = [f"{part.split} {index}"]
    if split.puzzle_ids_N[index]:
        title.append(f"puzzle id {split.puzzle_ids_N[index]}")
    if split.ratings_N is not None:
        title.append(f"rating {split.ratings_N[index]}")
    boards = (puzzle.render(question), puzzle.render(answer, question))
    return "\n\n".join((*boards, ", ".join(title)))
