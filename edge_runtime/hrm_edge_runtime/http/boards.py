"""Boards without a model: every kind that a generator makes, and fresh puzzles with their proven answers."""

from collections.abc import Iterator

import numpy as np

from hrm_edge_runtime.api.errors import bad_puzzle, invalid
from hrm_edge_runtime.api.schema import (
    FreshPuzzle,
    FreshRequest,
    KindView,
    LabelAnswer,
    LabelRequest,
)
from hrm_edge_runtime.api.served_model import board_size
from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError

SLOW = "extreme"  # a second each, which hrm-data has and a server has not


def kinds() -> Iterator[KindView]:
    for puzzle in map(registry.get, registry.names()):
        difficulties = [name for name in puzzle.difficulties if name != SLOW]
        if difficulties and (size := board_size(puzzle)):
            yield KindView(kind=puzzle.name, rows=size[0], cols=size[1], difficulties=difficulties)


def fresh_puzzle(asked: FreshRequest) -> FreshPuzzle:
    """Takes up to a tenth of a second of CPU; refuses with 422 what cannot be made."""
    from hrm_puzzles.data.sources import fresh  # brings what data sets need

    try:
        puzzle = registry.get(asked.kind)
        if asked.difficulty == SLOW:
            raise PuzzleError(
                f"{SLOW} puzzles take too long for a server",
                "too-slow",
                "make them with hrm-data build",
            )
        example = fresh(
            puzzle, np.random.default_rng(asked.seed), asked.difficulty, is_test=asked.held_out
        )
    except PuzzleError as error:
        raise invalid(error.rule, error.problem, error.remedy) from None
    question, answer = (puzzle.asked(grid, "") for grid in (example.question, example.answer))
    return FreshPuzzle(
        **asked.model_dump(), puzzle=question, solution=answer, rating=example.rating
    )


def judged(asked: LabelRequest) -> LabelAnswer:
    """Judge a label as `hrm-data import` does; refuses with 422 a kind, a puzzle or a label that it would refuse."""
    from hrm_puzzles.data.build import labelled  # brings what data sets need

    try:
        puzzle = registry.get(asked.kind)
        labelled(puzzle, {"puzzle": asked.puzzle, "solution": asked.solution})
    except PuzzleError as error:
        raise bad_puzzle(error) from None
    return LabelAnswer(verified=True if puzzle.proof_exists else None)
