"""What mazes and cities share: cells in a rectangle, tokens, notations, proofs and symmetries.

Shapes: B batch, T cells, V vocabulary, K symmetries.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar

import numpy as np

from hrm_host.reading import is_object
from hrm_puzzles.grid.board import GridShape, GridSymmetry, dihedral_hash_B, dihedral_sources_KT
from hrm_puzzles.grid.notation import error_at, parsed, text_of, written
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    BoolArray,
    Example,
    Geometry,
    Grid,
    Int8Array,
    Int32Array,
    IntArray,
    Notation,
    Parsed,
    PuzzleError,
    UInt64Array,
)
from hrm_puzzles.reading.grids import cells_in, lines_parsed, shape_of, values_shown
from hrm_puzzles.reading.legend import Cell, Legend, size_of
from hrm_puzzles.reading.record import board_in

BROKEN = "✗ "


@dataclass(frozen=True, kw_only=True)
class GridPuzzle(ABC):
    """A board of `rows` x `cols` cells.

    A subclass defines the values of the cells. `puzzle.Puzzle` describes each method.
    """

    name: str
    rows: int
    cols: int

    proof_exists = True
    noun: ClassVar[str]
    wrong_marks: ClassVar[str]
    """The problem of a question whose marks are not a right answer."""
    sides: ClassVar[range]
    vocab_size: ClassVar[int]
    difficulties: ClassVar[tuple[str, ...]]
    legend: ClassVar[Legend]
    token_of_value: ClassVar[Int32Array]
    value_of_token: ClassVar[Int8Array]
    """[V + 1]; the last entry is for tokens beyond the vocabulary."""
    marks: ClassVar[Mapping[int, int]]
    """The value that an answer may write in place of each value of a question."""
    pictures: ClassVar[Mapping[int, str]]
    """Two characters for each value, so that cells are about square."""
    wall: ClassVar[int]
    """The value of a cell that no answer enters."""
    wall_noun: ClassVar[str]
    stops: ClassVar[tuple[int, ...]]
    """The values that tell a question of this puzzle from those of others."""
    keys: ClassVar[tuple[str, ...]]
    """The keys of a question that is a JSON object."""

    def __post_init__(self) -> None:
        if self.rows not in self.sides or self.cols not in self.sides:
            problem = f"a {self.noun} of {self.rows}x{self.cols} is not possible"
            remedy = f"choose sides from {self.sides[0]} to {self.sides[-1]}"
            raise ValueError(f"{problem}; {remedy}.")

    @abstractmethod
    def check_question(self, tokens_T: IntArray) -> None:
        """Raise PuzzleError if the tokens are not a valid question."""

    @abstractmethod
    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
        """Whether each answer is proven right."""

    @abstractmethod
    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A fresh puzzle of a difficulty."""

    @abstractmethod
    def bare(self, tokens: IntArray) -> IntArray:
        """The tokens with the marks of an answer removed."""

    @abstractmethod
    def from_object(self, question: dict[str, object]) -> tuple[Grid, dict[str, object]]:
        """Read a JSON object. Returns the grid and the object without an answer."""

    @abstractmethod
    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """The JSON object of a question with its answer."""

    @cached_property
    def shape(self) -> GridShape:
        return GridShape(rows=self.rows, cols=self.cols)

    @property
    def seq_len(self) -> int:
        return self.shape.num_cells

    @property
    def geometry(self) -> Geometry:
        return Geometry(board=(self.rows, self.cols))

    def framed(self, notation: object) -> "GridPuzzle | None":
        """The puzzle in the size of a smaller question. `puzzle.Routed` describes it."""
        notation = board_in(notation)
        if not self._looks_alike(notation):
            return None
        shape = shape_of(self.legend, notation)
        if shape is None or shape == self.shape:
            return None
        if shape.rows <= self.rows and shape.cols <= self.cols:
            return of_shape(self, shape)
        least = self.sides[0]
        most = self.sides[-1]
        size = f"{shape.rows}x{shape.cols}"
        problem = f"a {self.noun} of {size} is larger than the boards served"
        remedy = f"send a smaller one, or serve its size: hrm-export CHECKPOINT --board {size}"
        if shape.rows > most or shape.cols > most:
            remedy = f"send at most {most} rows of {most} cells"
        elif shape.rows < least or shape.cols < least:
            problem = f"a {self.noun} of {size} is smaller than every board"
            remedy = f"send at least {least} rows of {least} cells"
        raise PuzzleError(problem, "too-large", remedy)

    def _looks_alike(self, notation: object) -> bool:
        """Whether a notation is of this puzzle: by its keys, its characters or all its numbers."""
        if is_object(notation):
            return set(self.keys) <= notation.keys()
        cells = cells_in(notation)
        if any(self.legend.characters[stop] in cells for stop in self.stops):
            return True
        if isinstance(notation, str):
            return values_shown(self.legend, notation) >= set(self.stops)
        return cells >= set(self.stops) and cells <= self.legend.characters.keys()

    @cached_property
    def read(self) -> Callable[[object], Parsed]:
        """Reads any notation except an object. It does not judge the board."""
        size = size_of(self.shape)
        from_text = partial(lines_parsed, size, self.legend)
        return partial(parsed, size, self.legend, from_text)

    def board_of(self, board: object) -> Grid:
        return self.read(board).grid

    def parse(self, notation: object) -> Parsed:
        """Read a question and check it. A question with a complete right answer passes."""
        notation = board_in(notation)
        if is_object(notation):
            grid, values = self.from_object(notation)
            blank = self.legend.open_value
            written_as = Notation(kind="object", blank=blank, template=json.dumps(values))
            question = Parsed(grid=grid, notation=written_as)
        else:
            question = self.read(notation)
        tokens_T = self.encode(question.grid)
        self.check_question(tokens_T)
        self._check_marks(tokens_T)
        return question

    def place(self, grid: Grid, cells: Sequence[Cell], value: int, name: str) -> None:
        """Write the value of a JSON object's cells into a grid.

        Raises PuzzleError for a cell in a wall or on a stop.
        """
        for cell in cells:
            if grid[cell] == self.wall:
                problem = f"the {name} is in a {self.wall_noun}"
                raise error_at(cell, problem, f"in-{self.wall_noun}", "choose an open cell")
            if grid[cell] in self.stops:
                problem = f"the {name} is on another stop"
                raise error_at(cell, problem, "same-cell", "choose another cell")
            grid[cell] = value

    def require_one(self, tokens_T: IntArray, token: int, name: str, letter: str) -> None:
        """Raise PuzzleError unless exactly one cell has this token."""
        cells: list[int] = np.flatnonzero(tokens_T == token).tolist()
        if not cells:
            remedy = f"mark one open cell with {letter}"
            raise PuzzleError(f"the {self.noun} has no {name}", f"no-{name}", remedy)
        if len(cells) > 1:
            row, col = self.shape.cell_name(cells[1])
            second = f"the second at row {row}, column {col}"
            problem = f"the {self.noun} has {len(cells)} cells {letter}, {second}"
            raise PuzzleError(problem, f"many-{name}s", f"keep one {letter}", (row, col))

    def _check_marks(self, tokens_T: IntArray) -> None:
        bare_T = self.bare(tokens_T)
        if (bare_T == tokens_T).all():
            return
        if not self.is_right_B(bare_T[None], tokens_T[None])[0]:
            remedy = f"send the {self.noun} without marks"
            raise PuzzleError(self.wrong_marks, "wrong-marks", remedy)

    def sample(self, identifiers: Sequence[str]) -> object:  # noqa: ARG002
        """A fresh question, the same in every call."""
        rng = np.random.default_rng(0)
        example = self.generate(rng, self.difficulties[0])
        return self.asked(example.question)

    def asked(self, grid: Grid, identifier: str = "") -> object:  # noqa: ARG002
        """The question as lines of text."""
        return text_of(self.legend, grid)

    @property
    def about(self) -> str:
        pairs = self.legend.characters.items()
        numbers = ", ".join(f"{value} for {character!r}" for value, character in pairs)
        board = f"{self.rows} rows of {self.cols} cells"
        return f"{board}: {self.legend.described}; as numbers {numbers}"

    def write(self, grid: Grid, notation: Notation) -> object:
        if notation.kind == "object":
            return self.object_of(json.loads(notation.template), grid)
        return written(self.legend, grid, notation)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Draw rows of cells in a frame.

        If `question` is passed, a cell that breaks it is crossed out.
        """
        if question is None:
            question = grid
        edge = "─" * 2 * grid.shape[1]
        lines = [f"┌{edge}┐"]
        for asked_row, row in zip(question.tolist(), grid.tolist(), strict=True):
            pictures = map(self._picture, asked_row, row)
            lines.append(f"│{''.join(pictures)}│")
        lines.append(f"└{edge}┘")
        return "\n".join(lines)

    def _picture(self, asked: int, answered: int) -> str:
        if answered in (asked, self.marks.get(asked)):
            return self.pictures[answered]
        return BROKEN

    def encode(self, grid: Grid) -> Int32Array:
        """Convert a grid to tokens [T]. A smaller one is in the upper left corner, among walls."""
        rows, cols = grid.shape
        if (rows, cols) != (self.rows, self.cols):
            margins = ((0, self.rows - rows), (0, self.cols - cols))
            grid = np.pad(grid, margins, constant_values=self.wall)
        return self.token_of_value[grid.reshape(-1)]

    def decode(self, tokens_T: IntArray) -> Grid:
        known_T = np.clip(tokens_T, 0, self.vocab_size)
        return self.value_of_token[known_T].reshape(self.rows, self.cols)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> Int8Array:
        is_right_B = self.is_right_B(inputs_BT, answers_BT)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)

    def equivalence_hash_B(
        self,
        inputs_BT: IntArray,
        labels_BT: IntArray,  # noqa: ARG002
    ) -> UInt64Array:
        """Hash the question alone, so that revealed parts of an answer do not count."""
        return dihedral_hash_B(self.shape, self.bare(inputs_BT))

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        sources_KT = dihedral_sources_KT(self.shape)
        source_T = sources_KT[rng.integers(len(sources_KT))]
        unchanged_V = np.arange(self.vocab_size, dtype=np.int32)
        return GridSymmetry(source_T=source_T, relabel_V=unchanged_V)

    def augment_BT(
        self,
        rng: np.random.Generator,
        inputs_BT: IntArray,
        labels_BT: IntArray,
    ) -> tuple[Int32Array, Int32Array]:
        sources_KT = dihedral_sources_KT(self.shape)
        symmetry_B = rng.integers(len(sources_KT), size=len(inputs_BT))
        source_BT = sources_KT[symmetry_B]
        turned_BT = np.take_along_axis(inputs_BT, source_BT, axis=1)
        turned_labels_BT = np.take_along_axis(labels_BT, source_BT, axis=1)
        return turned_BT.astype(np.int32), turned_labels_BT.astype(np.int32)


@cache
def of_shape(puzzle: GridPuzzle, shape: GridShape) -> GridPuzzle | None:
    """The puzzle in another size; None if it does not have this size."""
    if shape.rows not in puzzle.sides or shape.cols not in puzzle.sides:
        return None
    family, _, _ = puzzle.name.partition("-")
    name = f"{family}-{shape.rows}x{shape.cols}"
    return replace(puzzle, name=name, rows=shape.rows, cols=shape.cols)
