"""What mazes and cities share: a rectangle of cells, tokens by table, notations, a proof, symmetries.

Shapes: B batch, T cells, V vocabulary.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np

from hrm_puzzles.grid import board as grid_board
from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    Example,
    Geometry,
    Grid,
    IntArray,
    Notation,
    Parsed,
    PuzzleError,
)

BROKEN = "✗ "


def revealed_BT(
    rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray, num_revealed_B: IntArray
) -> grid_board.Int32Array:
    """Questions with that many random cells of each row, among those its label changes, already as in the label."""
    is_open_BT = inputs_BT != labels_BT
    order_BT = np.argsort(np.where(is_open_BT, rng.random(inputs_BT.shape), 2.0), axis=1)  # open cells come first
    rank_BT = np.argsort(order_BT, axis=1)
    is_revealed_BT = is_open_BT & (rank_BT < np.asarray(num_revealed_B)[:, None])
    return np.where(is_revealed_BT, labels_BT, inputs_BT).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class GridPuzzle(ABC):
    """Boards of `rows` x `cols` cells; a subclass says what they hold, `puzzle.Puzzle` what each method promises."""

    name: str
    rows: int
    cols: int

    num_puzzle_ids = 1
    proof_exists = True
    reveal_BT = staticmethod(revealed_BT)
    noun: ClassVar[str]
    wrong_marks: ClassVar[str]
    """The problem of a question with marks that are no right answer."""
    sides: ClassVar[range]
    vocab_size: ClassVar[int]
    difficulties: ClassVar[tuple[str, ...]]
    legend: ClassVar[grid_notation.Legend]
    token_of_value: ClassVar[grid_board.Int32Array]
    value_of_token: ClassVar[np.typing.NDArray[np.int8]]
    """[V + 1]; the last is for tokens beyond the vocabulary."""
    marks: ClassVar[Mapping[int, int]]
    """What an answer may turn each value of a question into."""
    pictures: ClassVar[Mapping[int, str]]
    """Two characters for each value, which makes cells about square."""
    palette: ClassVar[Mapping[int, str]]

    def __post_init__(self) -> None:
        if self.rows not in self.sides or self.cols not in self.sides:
            bounds = f"sides from {self.sides[0]} to {self.sides[-1]}"
            raise ValueError(f"a {self.noun} of {self.rows}x{self.cols} cannot be made; choose {bounds}.")

    @abstractmethod
    def check_question(self, tokens_T: IntArray) -> None:
        """Refuse tokens that make no sense as a question."""

    @abstractmethod
    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> grid_board.BoolArray:
        """Where answers to questions are proven."""

    @abstractmethod
    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A fresh puzzle of a difficulty."""

    @abstractmethod
    def bare(self, tokens: IntArray) -> IntArray:
        """Without the marks of an answer."""

    @abstractmethod
    def from_object(self, question: dict[object, object]) -> tuple[Grid, dict[str, object]]:
        """Read a JSON object into a grid, and the object without an answer."""

    @abstractmethod
    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """The object of a question with its answer."""

    @abstractmethod
    def question_object(self, grid: Grid) -> dict[str, object]:
        """A question as a JSON object, its stops apart from the grid."""

    @cached_property
    def shape(self) -> grid_board.GridShape:
        return grid_board.GridShape(rows=self.rows, cols=self.cols)

    @property
    def seq_len(self) -> int:
        return self.shape.num_cells

    @property
    def geometry(self) -> Geometry:
        return Geometry(board=(self.rows, self.cols))

    @cached_property
    def read(self) -> Callable[[object], Parsed]:
        """The grid in any notation but an object, whether it makes sense or not."""
        size = grid_notation.size_of(self.shape)
        return partial(grid_notation.parsed, size, self.legend, partial(grid_notation.lines_parsed, size, self.legend))

    def parse(self, notation: object) -> Parsed:
        """Refuses what is no board or makes no sense; one with a whole right answer passes, to be read back."""
        if isinstance(notation, dict):
            grid, question = self.from_object(cast("dict[object, object]", notation))
            form = Notation(kind="object", blank=self.legend.open_value, template=json.dumps(question))
            parsed = Parsed(grid=grid, notation=form)
        else:
            parsed = self.read(notation)
        tokens_T = self.encode(parsed.grid)
        self.check_question(tokens_T)
        bare_T = self.bare(tokens_T)
        if (bare_T != tokens_T).any() and not self.is_right_B(bare_T[None], tokens_T[None])[0]:
            raise PuzzleError(self.wrong_marks, "wrong-marks", f"send the {self.noun} without marks")
        return parsed

    def sample(self, identifiers: Sequence[str]) -> object:  # noqa: ARG002
        """A fresh question."""
        return self.asked(self.generate(np.random.default_rng(0), self.difficulties[0]).question)

    def asked(self, grid: Grid, identifier: str = "") -> object:  # noqa: ARG002
        """Lines of text."""
        return grid_notation.text_of(self.legend, grid)

    @property
    def about(self) -> str:
        numbers = ", ".join(f"{value} for {character!r}" for value, character in self.legend.characters.items())
        return f"{self.rows} rows of {self.cols} cells: {self.legend.described}; as numbers {numbers}"

    def forms(self, asked: Any) -> dict[str, object]:
        lines, grid = asked.split("\n"), self.parse(asked).grid
        return {
            "lines of text": asked,
            "one line": "".join(lines),
            "list of lines": lines,
            "rows of characters": [list(line) for line in lines],
            "rows of numbers": grid.tolist(),
            "object": self.question_object(grid),
        }

    def write(self, grid: Grid, notation: Notation) -> object:
        if notation.kind == "object":
            return self.object_of(json.loads(notation.template), grid)
        return grid_notation.written(self.legend, grid, notation)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Rows of cells in a frame; with `question`, a cell that does not keep it is crossed out."""
        asked = grid if question is None else question
        lines = ["".join(map(self._picture, *rows)) for rows in zip(asked.tolist(), grid.tolist(), strict=True)]
        edge = "─" * 2 * grid.shape[1]
        return "\n".join([f"┌{edge}┐", *(f"│{line}│" for line in lines), f"└{edge}┘"])

    def _picture(self, asked: int, answered: int) -> str:
        return self.pictures[answered] if answered in (asked, self.marks.get(asked)) else BROKEN

    def encode(self, grid: Grid) -> grid_board.Int32Array:
        return self.token_of_value[grid.reshape(-1)]

    def decode(self, tokens_T: IntArray) -> Grid:
        return self.value_of_token[np.clip(tokens_T, 0, self.vocab_size)].reshape(self.rows, self.cols)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> np.typing.NDArray[np.int8]:
        return np.where(self.is_right_B(inputs_BT, answers_BT), RIGHT, WRONG).astype(np.int8)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> grid_board.UInt64Array:  # noqa: ARG002
        """The question decides, whatever is revealed of its answer."""
        return grid_board.dihedral_hash_B(self.shape, self.bare(inputs_BT))

    def symmetry(self, rng: np.random.Generator) -> grid_board.GridSymmetry:
        sources_KT = grid_board.dihedral_sources_KT(self.shape)
        unchanged_V = np.arange(self.vocab_size, dtype=np.int32)
        return grid_board.GridSymmetry(source_T=sources_KT[rng.integers(len(sources_KT))], relabel_V=unchanged_V)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[grid_board.Int32Array, grid_board.Int32Array]:
        sources_KT = grid_board.dihedral_sources_KT(self.shape)
        source_BT = sources_KT[rng.integers(len(sources_KT), size=len(inputs_BT))]
        turned = (np.take_along_axis(tokens_BT, source_BT, axis=1) for tokens_BT in (inputs_BT, labels_BT))
        return next(turned).astype(np.int32), next(turned).astype(np.int32)
