"""ARC: grids of colours on a canvas, one class for the published canvas of 30 x 30 and for smaller ones.

What a task asks for is shown by demonstrations, which a model learns as its row of the puzzle table; so a question
names its task. No answer can be proven: every verdict is UNKNOWN.
Shapes: B batch, N answers, S side of the canvas, T = S * S, G = 2 partitions (row, column). Tokens as in `canvas`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hrm_puzzles.arc import canvas as arc_canvas
from hrm_puzzles.arc import notation as arc_notation
from hrm_puzzles.grid.board import BoolArray, Int32Array, UInt64Array
from hrm_puzzles.puzzle import (
    BLANK_IDENTIFIER,
    UNKNOWN,
    Ballot,
    Geometry,
    Grid,
    IntArray,
    Parsed,
    PuzzleError,
)

TRIALS = (1, 2, 10, 100, 1000)  # the published values of k; ARC itself allows two attempts

_COLOURS = "#000000 #0074D9 #FF4136 #2ECC40 #FFDC00 #AAAAAA #F012BE #FF851B #7FDBFF #870C25"  # of ARC's own pages
PALETTE = dict(enumerate(_COLOURS.split()))


@dataclass(frozen=True, kw_only=True)
class Arc:
    """ARC on a canvas of `side` x `side`; `puzzle.Puzzle` says what each method promises."""

    name: str
    side: int

    vocab_size = arc_canvas.VOCAB
    num_puzzle_ids = 1  # the blank one; a data set names the others
    proof_exists = False
    difficulties: tuple[str, ...] = ()
    palette = PALETTE

    @property
    def seq_len(self) -> int:
        return self.side**2

    @property
    def geometry(self) -> Geometry:
        fixed = arc_canvas.FIRST_COLOUR + 1
        return Geometry(board=(self.side, self.side), num_symbols=arc_canvas.VOCAB, num_fixed=fixed)

    def parse(self, notation: object) -> Parsed:
        """Read a question with its task's name; refuses grids that are not rectangular or do not fit the canvas."""
        return arc_notation.parsed(notation, self.side)

    def sample(self, identifiers: Sequence[str]) -> object:
        """A small question of the first task that a model knows."""
        names = [name for name in identifiers if name != BLANK_IDENTIFIER]
        return {
            "task": names[0] if names else "007bbfb7",
            "input": [[0, 7, 7], [7, 7, 7], [0, 7, 7]],
        }

    def asked(self, grid: Grid, identifier: str) -> object:
        """The question with its task; one of a variant is turned back to the task's own colours and turn."""
        task, variant = arc_canvas.variant_of(identifier)
        return {"task": task, "input": variant.invert(grid).tolist()}

    @property
    def about(self) -> str:
        return f"the name of a task that the model has learned, and a grid of the colours 0 to 9 up to {self.side} wide"

    def forms(self, asked: Any) -> dict[str, object]:
        task, rows = asked["task"], asked["input"]
        lines = ["".join(map(str, row)) for row in rows]
        return {
            "rows of numbers": asked,
            "list of lines": {"task": task, "input": lines},
            "lines of text": {"task": task, "input": "\n".join(lines)},
            "whole task": {"task": task, "train": [], "test": [{"input": rows}], "index": 0},
        }

    def write(self, grid: Grid, notation: arc_notation.Notation) -> object:
        return arc_notation.written(grid, notation)

    def encode(self, grid: Grid) -> Int32Array:
        """The grid in the upper left corner of its canvas, as every test question of the published data."""
        return arc_canvas.canvas_T(grid, self.side)

    def decode(self, tokens_T: IntArray) -> Grid:
        """The grid that begins at the first row and column with a colour; 0 x 0 if there is none."""
        box = arc_canvas.boxes_of_B(np.asarray(tokens_T)[None], self.side)
        return arc_canvas.grid_at(tokens_T, self.side, (int(box.top_B[0]), int(box.left_B[0])))

    def is_well_formed_B(self, tokens_BT: IntArray) -> BoolArray:
        """Whether each row is exactly one grid with its end marks, the one thing that can be said of an answer."""
        boxes = arc_canvas.boxes_of_B(tokens_BT, self.side)
        redrawn_BT = arc_canvas.moved_BT(tokens_BT, boxes, boxes.top_B, boxes.left_B, self.side)
        is_full_B = (
            arc_canvas.is_colour(np.asarray(tokens_BT)).sum(axis=1)
            == boxes.height_B * boxes.width_B
        )
        return is_full_B & (redrawn_BT == tokens_BT).all(axis=1)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> np.typing.NDArray[np.int8]:  # noqa: ARG002
        """UNKNOWN, always: what a task asks for is not written anywhere."""
        return np.full(len(inputs_BT), UNKNOWN, dtype=np.int8)

    def generate(self, rng: np.random.Generator, difficulty: str) -> NoReturn:  # noqa: ARG002
        remedy = f"build a data set from tasks with hrm-data build {self.name}"
        raise PuzzleError("ARC tasks are made by people, not generated", "not-generated", remedy)

    def symmetry(self, rng: np.random.Generator) -> "ArcSymmetry":
        return ArcSymmetry(side=self.side, variant=arc_canvas.random_variant(rng))

    def variant_of(self, name: str) -> tuple[str, "ArcSymmetry"]:
        task, variant = arc_canvas.variant_of(name)
        return task, ArcSymmetry(side=self.side, variant=variant)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[Int32Array, Int32Array]:
        """Each pair at a fresh place where both grids fit; turned and recoloured copies are puzzle ids of their own."""
        asked, answered = (
            arc_canvas.boxes_of_B(inputs_BT, self.side),
            arc_canvas.boxes_of_B(labels_BT, self.side),
        )
        top_B = rng.integers(self.side - np.maximum(asked.height_B, answered.height_B) + 1)
        left_B = rng.integers(self.side - np.maximum(asked.width_B, answered.width_B) + 1)
        # An answer that shows no pad stays: in labels another value may take the place of pad.
        stays_B = np.asarray(labels_BT).min(axis=1) > arc_canvas.PAD
        top_B, left_B = (
            np.where(stays_B, asked.top_B, top_B),
            np.where(stays_B, asked.left_B, left_B),
        )
        return (
            arc_canvas.moved_BT(inputs_BT, asked, top_B, left_B, self.side),
            arc_canvas.moved_BT(labels_BT, answered, top_B, left_B, self.side),
        )

    def reveal_BT(
        self,
        rng: np.random.Generator,  # noqa: ARG002
        inputs_BT: IntArray,
        labels_BT: IntArray,  # noqa: ARG002
        num_revealed_B: IntArray,  # noqa: ARG002
    ) -> Int32Array:
        """The questions as they are: an answer's cells have no place in the question."""
        return np.asarray(inputs_BT).astype(np.int32)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        return arc_canvas.equivalence_hash_B(inputs_BT, labels_BT, self.side)

    def pass_at(
        self,
        names: Sequence[str],
        inputs_NT: IntArray,
        labels_NT: IntArray,
        answers_NT: IntArray,
        q_halt_N: np.typing.NDArray[np.floating],
    ) -> dict[int, float]:
        """The published score: a task counts where the answer to each of its test inputs is among the first k grids."""
        ballots: dict[tuple[str, bytes], Ballot] = {}  # by task and test input
        labels: dict[tuple[str, bytes], bytes] = {}
        for name, *rows, q_halt in zip(
            names, inputs_NT, labels_NT, answers_NT, q_halt_N.tolist(), strict=True
        ):
            task, variant = arc_canvas.variant_of(name)
            question, label, answer = (
                _key(variant.invert(arc_canvas.grid_at(tokens_T, self.side))) for tokens_T in rows
            )
            ballots.setdefault((task, question), Ballot()).cast(answer, q_halt)
            labels[task, question] = label
        ranked = {test_input: ballot.ranked() for test_input, ballot in ballots.items()}
        num_tasks = len({task for task, _ in labels})
        shares: dict[int, float] = {}
        for k in TRIALS:
            missed = {key[0] for key, label in labels.items() if label not in ranked[key][:k]}
            shares[k] = (num_tasks - len(missed)) / num_tasks if num_tasks else 0.0
        return shares

    def render(self, grid: Grid, question: Grid | None = None) -> str:  # noqa: ARG002
        """A text board of digits, a point for colour 0; an answer is not laid over its question."""
        return "\n".join(
            " ".join("." if cell == 0 else str(cell) for cell in row) for row in grid.tolist()
        )


@dataclass(frozen=True, kw_only=True)
class ArcSymmetry:
    """A variant applied to each canvas's grid, which keeps its place (row and column exchanged with its sides)."""

    side: int
    variant: arc_canvas.Variant

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        return self._each(tokens_BT, self.variant.apply, self.variant.turn)

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        return self._each(
            tokens_BT, self.variant.invert, arc_canvas.INVERSE_TURN[self.variant.turn]
        )

    def _each(self, tokens_BT: IntArray, change: Callable[[Grid], Grid], turn: int) -> Int32Array:
        boxes, order = (
            arc_canvas.boxes_of_B(tokens_BT, self.side),
            -1 if turn in arc_canvas.TRANSPOSING else 1,
        )
        changed: list[Int32Array] = []
        for tokens_T, top, left in zip(
            tokens_BT, boxes.top_B.tolist(), boxes.left_B.tolist(), strict=True
        ):
            grid = change(arc_canvas.grid_at(tokens_T, self.side, (top, left)))
            changed.append(arc_canvas.canvas_T(grid, self.side, (top, left)[::order]))
        return np.stack(changed)


def _key(grid: Grid) -> bytes:
    return bytes(grid.shape) + np.ascontiguousarray(grid, dtype=np.int8).tobytes()
