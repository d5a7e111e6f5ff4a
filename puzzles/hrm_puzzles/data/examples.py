"""Examples of a data set as a person looks at them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hrm_puzzles import registry
from hrm_puzzles.data.datasets import DatasetError, Split, open_split
from hrm_puzzles.data.inspection import puzzle_at
from hrm_puzzles.puzzle import Grid, Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A question and its label as grids; the title says where it stands and what is known of it."""

    puzzle: Puzzle
    title: str
    question: Grid
    answer: Grid

    def text(self) -> str:
        """The question, then the label with the givens marked, then the title."""
        boards = (self.puzzle.render(self.question), self.puzzle.render(self.answer, self.question))
        return "\n\n".join((*boards, self.title))


def read_examples(path: Path, split: str, first: int, count: int, puzzle_name: str | None) -> list[Example]:
    """The example at index `first` and the first ones of the groups after it, up to `count`.

    Refuses an index that is not there.
    """
    examples = open_split(path, split)
    if first >= len(examples):
        raise DatasetError(f"{split} has {len(examples)} examples, so there is no index {first}; give a smaller one.")
    puzzle = registry.get(puzzle_name) if puzzle_name else puzzle_at(path, examples.meta)
    names = _identifiers(path)
    found: list[Example] = []
    for index in [first, *_first_of_groups_after(examples, first)[: count - 1]]:
        known = [f"{split} {index}"]
        number = int(examples.puzzle_ids_N[index])
        if number:
            known.append(names[number] if number < len(names) else f"puzzle id {number}")
        if examples.ratings_N is not None:
            known.append(f"rating {examples.ratings_N[index]}")
        grids = (puzzle.decode(tokens_NT[index]) for tokens_NT in (examples.inputs_NT, examples.labels_NT))
        found.append(Example(puzzle=puzzle, title=", ".join(known), question=next(grids), answer=next(grids)))
    return found


def _first_of_groups_after(examples: Split, index: int) -> list[int]:
    starts = examples.puzzle_offsets[examples.group_offsets[:-1]]
    return starts[starts > index].tolist()


def _identifiers(path: Path) -> list[str]:
    try:
        return list(json.loads((path / "identifiers.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return []  # titles then give the number
