"""Mazes of 4x4 to 30x30: the answer marks a shortest path from S to G.

Tokens as in the published HRM data, see `maze_board`. Shapes: B batch, T cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid import equivalence as grid_equivalence
from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.rectangle import GridPuzzle
from hrm_puzzles.maze import generator as maze_generator
from hrm_puzzles.maze import notation as maze_notation
from hrm_puzzles.maze import render as maze_render
from hrm_puzzles.maze import rules as maze_rules
from hrm_puzzles.maze.board import (
    GOAL_TOKEN,
    OPEN_TOKEN,
    PATH_TOKEN,
    START_TOKEN,
    TOKEN_OF_VALUE,
    VALUE_OF_TOKEN,
    VOCAB_SIZE,
)
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, RIGHT, WRONG, Example, Grid, IntArray, Notation, Parsed

SIDES = range(4, 31)


@dataclass(frozen=True, kw_only=True)
class Maze(GridPuzzle):
    """Mazes of `rows` x `cols` cells; `puzzle.Puzzle` says what each method promises."""

    vocab_size = VOCAB_SIZE
    difficulties = maze_generator.DIFFICULTIES

    def __post_init__(self) -> None:
        if self.rows not in SIDES or self.cols not in SIDES:
            raise ValueError(f"a maze of {self.rows}x{self.cols} cannot be made; choose sides from 4 to 30.")

    @property
    def palette(self) -> Mapping[int, str]:
        """The colour of each value of a grid, as #rrggbb."""
        return maze_render.PALETTE

    def parse(self, notation: object) -> Parsed:
        """Read any notation; refuses what is no board, and boards without one start, one goal and a way."""
        parsed = maze_notation.parsed(self.shape, notation)
        maze_rules.check_question(self.shape, self.encode(parsed.grid))
        return parsed

    def board_of(self, text: str) -> Grid:
        """The cells of one row of a CSV file, question or answer; what they mean is not looked at."""
        return grid_notation.parsed(self.shape, maze_notation.LEGEND, text).grid

    def sample(self, identifiers: Sequence[str]) -> object:
        """A fresh question."""
        del identifiers
        return self.asked(self.generate(np.random.default_rng(0), self.difficulties[0]).question, BLANK_IDENTIFIER)

    def asked(self, grid: Grid, identifier: str) -> object:  # noqa: ARG002
        """Lines of text."""
        return grid_notation.text_of(maze_notation.LEGEND, grid)

    def write(self, grid: Grid, notation: Notation) -> object:
        return maze_notation.written(grid, notation)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A maze with exactly one shortest path; its rating is the length in moves."""
        return maze_generator.generate(self.shape, rng, difficulty)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """A picture in text; with `question`, what breaks it stands out."""
        return maze_render.board_text(grid, question)

    def encode(self, grid: Grid) -> NDArray[np.int32]:
        return TOKEN_OF_VALUE[grid.reshape(-1)]

    def decode(self, tokens_T: IntArray) -> Grid:
        return VALUE_OF_TOKEN[np.clip(tokens_T, 0, VOCAB_SIZE)].reshape(self.rows, self.cols)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> NDArray[np.int8]:
        """RIGHT where all cells are kept and the marks are a shortest path, any of them; else WRONG."""
        is_right_B = maze_rules.is_shortest_path_B(self.shape, inputs_BT, answers_BT)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> NDArray[np.uint64]:  # noqa: ARG002
        """The question decides, whatever is revealed of its path, and a maze walked backwards is the same."""
        bare_BT = np.where(inputs_BT == PATH_TOKEN, OPEN_TOKEN, inputs_BT)
        either_end_BT = np.where(bare_BT == GOAL_TOKEN, START_TOKEN, bare_BT)
        return grid_equivalence.equivalence_hash_B(self.shape, either_end_BT)
