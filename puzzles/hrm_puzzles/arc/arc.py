"""ARC: grids of colors on a canvas of the published size, 30 x 30, or smaller.

Demonstrations define a task. A model learns them as its row of the puzzle table, so a question
names its task. Answers cannot be proven: every verdict is UNKNOWN.
Shapes: B batch, N answers, S side of the canvas, T = S * S. Tokens as in `canvas`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import (
    FIRST_COLOR,
    PAD,
    VOCAB,
    boxes_of_B,
    canvas_T,
    grid_at,
    is_color,
    moved_BT,
    pair_hash_B,
)
from hrm_puzzles.arc.notation import parsed, written
from hrm_puzzles.arc.variants import TRANSPOSING, Variant, random_variant, variant_of
from hrm_puzzles.puzzle import (
    BLANK_IDENTIFIER,
    UNKNOWN,
    Ballot,
    BoolArray,
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

TRIALS = (1, 2, 10, 100, 1000)  # the published values of k; ARC itself allows two attempts

TestInput = tuple[str, bytes]  # a task, and the key of a question


@dataclass(frozen=True, kw_only=True)
class Arc:
    """ARC on a canvas of `side` x `side`. `puzzle.Puzzle` describes each method."""

    name: str
    side: int

    vocab_size = VOCAB
    proof_exists = False
    difficulties: tuple[str, ...] = ()

    @property
    def seq_len(self) -> int:
        return self.side**2

    @property
    def geometry(self) -> Geometry:
        num_fixed = FIRST_COLOR + 1  # pad, end mark and color 0
        return Geometry(board=(self.side, self.side), num_symbols=VOCAB, num_fixed=num_fixed)

    def parse(self, notation: object) -> Parsed:
        """Read a question with the name of its task. The grid must fit the canvas."""
        return parsed(notation, self.side)

    def sample(self, identifiers: Sequence[str]) -> object:
        """A small question of the first task that a model knows."""
        named = (name for name in identifiers if name != BLANK_IDENTIFIER)
        return {"task": next(named, "007bbfb7"), "input": [[0, 7, 7], [7, 7, 7], [0, 7, 7]]}

    def asked(self, grid: Grid, identifier: str) -> object:
        """The question with its task. A variant is turned back to the task's own colors."""
        task, variant = variant_of(identifier)
        return {"task": task, "input": variant.invert(grid).tolist()}

    @property
    def about(self) -> str:
        grid = f"a grid of the colors 0 to 9 up to {self.side} wide"
        return f"the name of a task that the model has learned, and {grid}"

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(grid, notation)

    def encode(self, grid: Grid) -> Int32Array:
        """The grid in the upper left corner of its canvas, like all published test questions."""
        return canvas_T(grid, self.side)

    def decode(self, tokens_T: IntArray) -> Grid:
        """The grid that begins at the first row and column with a color; 0 x 0 if no cell has a
        color."""
        box = boxes_of_B(np.asarray(tokens_T)[None], self.side)
        origin = (int(box.top_B[0]), int(box.left_B[0]))
        return grid_at(tokens_T, self.side, origin)

    def is_well_formed_B(self, tokens_BT: IntArray) -> BoolArray:
        """Whether each row is exactly one grid with its end marks."""
        boxes = boxes_of_B(tokens_BT, self.side)
        redrawn_BT = moved_BT(tokens_BT, boxes, boxes.top_B, boxes.left_B, self.side)
        num_colors_B = is_color(np.asarray(tokens_BT)).sum(axis=1)
        is_full_B = num_colors_B == boxes.height_B * boxes.width_B
        return is_full_B & (redrawn_BT == tokens_BT).all(axis=1)

    def check_BT(
        self,
        inputs_BT: IntArray,
        answers_BT: IntArray,  # noqa: ARG002
    ) -> Int8Array:
        """Always UNKNOWN: a question does not contain the rule of its task."""
        return np.full(len(inputs_BT), UNKNOWN, dtype=np.int8)

    def generate(self, rng: np.random.Generator, difficulty: str) -> NoReturn:  # noqa: ARG002
        problem = "ARC tasks are made by people, not generated"
        remedy = f"build a data set from tasks with hrm-data build {self.name}"
        raise PuzzleError(problem, "not-generated", remedy)

    def symmetry(self, rng: np.random.Generator) -> "ArcSymmetry":
        return ArcSymmetry(side=self.side, variant=random_variant(rng))

    def variant_of(self, name: str) -> tuple[str, "ArcSymmetry"]:
        task, variant = variant_of(name)
        return task, ArcSymmetry(side=self.side, variant=variant)

    def augment_BT(
        self,
        rng: np.random.Generator,
        inputs_BT: IntArray,
        labels_BT: IntArray,
    ) -> tuple[Int32Array, Int32Array]:
        """Move each pair to a random place where both grids fit.

        Turned and recolored copies are puzzle ids of their own.
        """
        asked = boxes_of_B(inputs_BT, self.side)
        answered = boxes_of_B(labels_BT, self.side)
        height_B = np.maximum(asked.height_B, answered.height_B)
        width_B = np.maximum(asked.width_B, answered.width_B)
        top_B = rng.integers(self.side - height_B + 1)
        left_B = rng.integers(self.side - width_B + 1)
        # Labels may hold another value in place of pad. An answer without such a cell does not show
        # this value, so its pair keeps its place.
        stays_B = np.asarray(labels_BT).min(axis=1) > PAD
        top_B = np.where(stays_B, asked.top_B, top_B)
        left_B = np.where(stays_B, asked.left_B, left_B)
        moved_inputs_BT = moved_BT(inputs_BT, asked, top_B, left_B, self.side)
        moved_labels_BT = moved_BT(labels_BT, answered, top_B, left_B, self.side)
        return moved_inputs_BT, moved_labels_BT

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        return pair_hash_B(inputs_BT, labels_BT, self.side)

    def pass_at(
        self,
        names: Sequence[str],
        inputs_NT: IntArray,
        labels_NT: IntArray,
        answers_NT: IntArray,
        q_halt_N: NDArray[np.floating],
    ) -> dict[int, float]:
        """The published score, for each k of TRIALS.

        A task counts if the answer to each of its test inputs is among the k grids with the most
        votes.
        """
        ballots: dict[TestInput, Ballot] = {}
        labels: dict[TestInput, bytes] = {}
        q_halts = q_halt_N.tolist()
        votes = zip(names, inputs_NT, labels_NT, answers_NT, q_halts, strict=True)
        for name, inputs_T, labels_T, answer_T, q_halt in votes:
            task, variant = variant_of(name)
            test_input = (task, self._key(inputs_T, variant))
            labels[test_input] = self._key(labels_T, variant)
            ballot = ballots.setdefault(test_input, Ballot())
            ballot.cast(self._key(answer_T, variant), q_halt)
        return _shares_solved(ballots, labels)

    def _key(self, tokens_T: IntArray, variant: Variant) -> bytes:
        """The shape and the cells of a grid in the task's own colors and turn."""
        grid = variant.invert(grid_at(tokens_T, self.side))
        cells = np.ascontiguousarray(grid, dtype=np.int8)
        return bytes(grid.shape) + cells.tobytes()

    def render(self, grid: Grid, question: Grid | None = None) -> str:  # noqa: ARG002
        """Draw a text board of digits with a point for color 0.

        The question is not drawn: its cells are not those of the answer.
        """
        lines: list[str] = []
        for row in grid.tolist():
            cells = [str(cell or ".") for cell in row]
            lines.append(" ".join(cells))
        return "\n".join(lines)


def _shares_solved(
    ballots: dict[TestInput, Ballot],
    labels: dict[TestInput, bytes],
) -> dict[int, float]:
    """For each k of TRIALS, the share of tasks with a right answer among the first k."""
    ranked = {test_input: ballot.ranked() for test_input, ballot in ballots.items()}
    tasks = {task for task, _ in labels}
    if not tasks:
        return dict.fromkeys(TRIALS, 0.0)
    shares: dict[int, float] = {}
    for k in TRIALS:
        missed: set[str] = set()
        for test_input, label in labels.items():
            if label not in ranked[test_input][:k]:
                missed.add(test_input[0])
        shares[k] = (len(tasks) - len(missed)) / len(tasks)
    return shares


@dataclass(frozen=True, kw_only=True)
class ArcSymmetry:
    """A variant that is applied to the grid of each canvas.

    The grid keeps its place. If the turn exchanges height and width, the row and the column of its
    first cell are exchanged as well.
    """

    side: int
    variant: Variant

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        return self._each(tokens_BT, self.variant.apply)

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        return self._each(tokens_BT, self.variant.invert)

    def _each(self, tokens_BT: IntArray, change: Callable[[Grid], Grid]) -> Int32Array:
        boxes = boxes_of_B(tokens_BT, self.side)
        # The inverse of a turn exchanges height and width if the turn does.
        is_transposing = self.variant.turn in TRANSPOSING
        changed: list[Int32Array] = []
        for index, tokens_T in enumerate(tokens_BT):
            top = int(boxes.top_B[index])
            left = int(boxes.left_B[index])
            grid = change(grid_at(tokens_T, self.side, (top, left)))
            if is_transposing:
                top, left = left, top
            changed.append(canvas_T(grid, self.side, (top, left)))
        return np.stack(changed)
