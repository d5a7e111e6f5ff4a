"""City routing: the answer marks the roads of a cheapest closed tour from the depot through all customers.

A move goes to one of the four neighbours and costs what the entered cell costs: 1 for roads, 2 or 4 for congested
ones, 1 for the depot and the customers. A cell may be driven over more than once and is paid each time.
Tokens: see `logistics_board`. Shapes: B batch, T cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid import equivalence as grid_equivalence
from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.rectangle import GridPuzzle
from hrm_puzzles.logistics import generator as logistics_generator
from hrm_puzzles.logistics import notation as logistics_notation
from hrm_puzzles.logistics import render as logistics_render
from hrm_puzzles.logistics import rules as logistics_rules
from hrm_puzzles.logistics.board import CUSTOMER_TOKEN, TOKEN_OF_VALUE, TOUR, VALUE_OF_TOKEN, VOCAB_SIZE
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, RIGHT, WRONG, Example, Grid, IntArray, Notation, Parsed

SIDES = range(5, 31)


@dataclass(frozen=True, kw_only=True)
class Logistics(GridPuzzle):
    """Cities of `rows` x `cols` cells; `puzzle.Puzzle` says what each method promises."""

    vocab_size = VOCAB_SIZE
    difficulties = tuple(logistics_generator.NUM_CUSTOMERS)

    def __post_init__(self) -> None:
        if self.rows not in SIDES or self.cols not in SIDES:
            raise ValueError(f"a city of {self.rows}x{self.cols} cannot be made; choose sides from 5 to 30.")

    @property
    def palette(self) -> Mapping[int, str]:
        """The colour of each value of a grid, as #rrggbb."""
        return logistics_render.PALETTE

    def parse(self, notation: object) -> Parsed:
        """Read any notation; refuses what is no board, and cities without one depot and 1 to 8 customers in reach.

        Several tours may be cheapest; any of them is a right answer.
        """
        parsed = logistics_notation.parsed(self.shape, notation)
        logistics_rules.check_question(self.shape, self.encode(parsed.grid))
        return parsed

    def sample(self, identifiers: Sequence[str]) -> object:
        """A fresh question."""
        del identifiers
        return self.asked(self.generate(np.random.default_rng(0), self.difficulties[0]).question, BLANK_IDENTIFIER)

    def asked(self, grid: Grid, identifier: str) -> object:  # noqa: ARG002
        """Lines of text."""
        return grid_notation.text_of(logistics_notation.LEGEND, grid)

    def write(self, grid: Grid, notation: Notation) -> object:
        return logistics_notation.written(grid, notation)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A city with exactly one right answer; its rating is the cost of the tour."""
        return logistics_generator.generate(self.shape, rng, difficulty)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """A picture in text; with `question`, what breaks it stands out."""
        return logistics_render.board_text(grid, question)

    def encode(self, grid: Grid) -> NDArray[np.int32]:
        return TOKEN_OF_VALUE[grid.reshape(-1)]

    def decode(self, tokens_T: IntArray) -> Grid:
        return VALUE_OF_TOKEN[np.clip(tokens_T, 0, VOCAB_SIZE)].reshape(self.rows, self.cols)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> NDArray[np.int8]:
        """RIGHT where the city is kept and the marked roads hold a cheapest tour, each of them needed; else WRONG."""
        is_right_B = logistics_rules.is_cheapest_tour_B(self.shape, inputs_BT, answers_BT)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> NDArray[np.uint64]:  # noqa: ARG002
        """The question decides, whatever is revealed of its tour."""
        bare_BT = np.where(inputs_BT > CUSTOMER_TOKEN, inputs_BT - TOUR, inputs_BT)
        return grid_equivalence.equivalence_hash_B(self.shape, bare_BT)
