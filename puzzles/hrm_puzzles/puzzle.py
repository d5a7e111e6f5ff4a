"""The protocol of a puzzle: notations, tokens, verdicts, generation and symmetries.

A verdict is RIGHT (proven), WRONG (disproven) or UNKNOWN (a proof does not exist).
Shapes: B batch, N examples, T tokens (cells), G partitions of the positions.
"""

import contextlib
import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

RIGHT = 1
WRONG = 0
UNKNOWN = -1
BLANK_IDENTIFIER = "<blank>"
"""The name of row 0 of a puzzle table. It belongs to no particular task."""

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.integer]
Int8Array = NDArray[np.int8]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
IntpArray = NDArray[np.intp]
UInt8Array = NDArray[np.uint8]
UInt64Array = NDArray[np.uint64]
Grid = Int8Array


class PuzzleError(ValueError):
    """An invalid puzzle. Its text is one sentence: value, expectation and remedy.

    `rule` is a stable slug. `remedy` is the next step. `cell` is the (row, column), counted from 1,
    if a single cell causes the error.
    """

    def __init__(
        self,
        problem: str,
        rule: str,
        remedy: str,
        cell: tuple[int, int] | None = None,
    ) -> None:
        # Pass all arguments on: pickling rebuilds the error from them.
        super().__init__(problem, rule, remedy, cell)
        self.problem = problem
        self.rule = rule
        self.remedy = remedy
        self.cell = cell

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}."


@dataclass(frozen=True, kw_only=True)
class Notation:
    """The notation of a question. Its answer is written in the same one.

    `kind` is the puzzle's own word for the form ("text", "rows", "flat"). `blank` is the value of
    an open cell. For text, `template` is the text itself and `cells` has the offsets of each cell:
    its first character, and the end.
    """

    kind: str
    blank: str | int | None
    template: str = ""
    cells: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A parsed question.

    `identifier` names the row of the puzzle table if a puzzle has several rows (ARC tasks).
    """

    grid: Grid
    notation: Notation
    identifier: str | None = None


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The layout of the positions and the interchangeable tokens.

    Relational blocks know nothing else about a puzzle. `board` holds the lengths of the axes of the
    positions: (rows, columns) of a grid, or (bands, rows, stacks, columns) of a board of units.
    Their product is the number of positions. The units of a board are its rows, its columns and
    the boxes where a band and a stack meet; without boxes, bands and stacks are single lines.
    The last `num_symbols` tokens are interchangeable, except for the first `num_fixed` of them. On
    a grid they are one or all tokens.
    """

    board: tuple[int, ...]
    num_symbols: int = 1
    num_fixed: int = 0

    def require(self, seq_len: int, vocab_size: int) -> None:
        """Raise PuzzleError if this geometry does not fit a puzzle of these sizes."""
        sizes = f"{seq_len} positions of {vocab_size} tokens"
        if len(self.board) not in (2, 4) or math.prod(self.board) != seq_len:
            problem = f"the board {self.board} does not give {sizes}"
            remedy = "give (rows, columns) or (bands, rows, stacks, columns) with that product"
            raise PuzzleError(problem, "wrong-geometry", remedy)
        is_whole = self.num_symbols in (1, vocab_size)
        has_symbols = 1 <= self.num_symbols <= vocab_size and (len(self.board) == 4 or is_whole)
        if not has_symbols or not 0 <= self.num_fixed < self.num_symbols:
            problem = f"{self.num_symbols} symbols, {self.num_fixed} fixed, do not fit {sizes}"
            remedy = "count the interchangeable tokens at the end; on a grid give 1 or all"
            raise PuzzleError(problem, "wrong-geometry", remedy)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question with its proven answer. `rating` is the puzzle's own measure of difficulty."""

    question: Grid
    answer: Grid
    rating: int


class Symmetry(Protocol):
    """A transformation of a puzzle and its answer. `invert` undoes `apply` exactly."""

    def apply(self, tokens_BT: IntArray) -> Int32Array: ...

    def invert(self, tokens_BT: IntArray) -> Int32Array: ...


class Puzzle(Protocol):
    """One kind of puzzle of one size. It has no state, so threads can share it."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def proof_exists(self) -> bool: ...
    @property
    def difficulties(self) -> tuple[str, ...]: ...

    @property
    def geometry(self) -> Geometry:
        """What a model may know about the positions before training."""
        ...

    def parse(self, notation: object) -> Parsed:
        """Read any supported notation. Raises PuzzleError and no other exception."""
        ...

    def sample(self, identifiers: Sequence[str]) -> object:
        """An example question in a common notation. `identifiers` are the tasks of a model."""
        ...

    def asked(self, grid: Grid, identifier: str) -> object:
        """Write a question in a common notation. `identifier` is its row of the puzzle table."""
        ...

    def write(self, grid: Grid, notation: Notation) -> object:
        """Write a grid as a JSON value in the notation of a question."""
        ...

    def encode(self, grid: Grid) -> Int32Array:
        """Convert a grid to tokens [T]."""
        ...

    def decode(self, tokens_T: IntArray) -> Grid:
        """Convert tokens to a grid. A token without a value becomes a blank."""
        ...

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> Int8Array:
        """The verdict of each answer, int8 [B]."""
        ...

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """Make a fresh puzzle. The same generator state gives the same puzzle."""
        ...

    def symmetry(self, rng: np.random.Generator) -> Symmetry:
        """Draw a random symmetry. It applies to a whole batch and is exactly invertible."""
        ...

    def augment_BT(
        self,
        rng: np.random.Generator,
        inputs_BT: IntArray,
        labels_BT: IntArray,
    ) -> tuple[Int32Array, Int32Array]:
        """Apply a fresh random symmetry to each row, for training."""
        ...

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """A hash that all symmetric copies of an example share.

        It keeps test sets apart from training sets.
        """
        ...

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Draw a text board. If `question` is passed, its givens are highlighted."""
        ...


# Optional abilities of a puzzle.


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One part of a route, from the previous stop to the cell `to`.

    `cells` are the cells it enters in order, including `to`. `cost` is their total cost.
    """

    to: tuple[int, int]
    cost: int
    cells: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """The route that an answer marks. Cells are (row, column), counted from 0.

    A route that does not reach its end has no legs and no cost. A search finds `optimum`, the
    lowest cost of any route: it judges an answer and never replaces it.
    """

    start: tuple[int, int]
    legs: list[Leg]
    cost: int | None
    optimum: int


@runtime_checkable
class Routed(Protocol):
    """A puzzle whose answers are routes through the board.

    Smaller boards fit into its board: `encode` puts walls around them, which no route enters, so
    both boards have the same answers.
    """

    def route(self, question: Grid, answer: Grid) -> Route: ...

    def framed(self, notation: object) -> Puzzle | None:
        """The puzzle in the size of a smaller question; None if it does not look like one.

        Raises PuzzleError with the rule `too-large` for a question that is larger.
        """
        ...


def sized(puzzle: Puzzle, notation: object) -> Puzzle:
    """The puzzle in the size of a question that its board can frame, else the puzzle itself."""
    framed = None
    if isinstance(puzzle, Routed):
        with contextlib.suppress(PuzzleError):
            framed = puzzle.framed(notation)
    return framed or puzzle


@runtime_checkable
class Described(Protocol):
    """A puzzle that explains the characters of its notations."""

    @property
    def about(self) -> str: ...


@runtime_checkable
class Labelling(Protocol):
    """A puzzle with an exact solver, which labels questions and never answers for a model."""

    def label_of(self, question: Grid) -> Grid:
        """A right answer. Raises PuzzleError if the question is not valid."""
        ...


class Hints(NamedTuple):
    """Training hints: what a cell can know after n cycles.

    Information travels one cell per cycle.
    """

    kinds_BT: Int32Array
    """An additional label below `num_hints`; -1 for cells without one."""
    after_BT: Int32Array
    """Cycles until the kind is known. The kind is 0 until then."""
    answer_after_BT: Int32Array
    """Cycles until the label is known. The target is the question's token until then."""


@runtime_checkable
class Hinted(Protocol):
    """A puzzle whose hints show a model in training the steps to an answer; never served."""

    @property
    def num_hints(self) -> int: ...

    def hints(self, inputs_BT: IntArray, labels_BT: IntArray) -> Hints: ...


@runtime_checkable
class Voting(Protocol):
    """A puzzle without proofs: it recognizes malformed answers, and its variants vote for one.

    A variant of a task has its own row of the puzzle table.
    """

    def variant_of(self, name: str) -> tuple[str, Symmetry]:
        """The task of a row, and the symmetry that makes this variant of its puzzles."""
        ...

    def is_well_formed_B(self, tokens_BT: IntArray) -> BoolArray: ...

    def pass_at(
        self,
        names: Sequence[str],
        inputs_NT: IntArray,
        labels_NT: IntArray,
        answers_NT: IntArray,
        q_halt_N: NDArray[np.floating],
    ) -> dict[int, float]:
        """For each k of `arc.arc.TRIALS`, the share of solved tasks.

        A task is solved if its answer is among the k grids with the most votes.
        """
        ...


def require_difficulty(difficulty: str, known: Collection[str]) -> None:
    if difficulty not in known:
        problem = f"the difficulty {difficulty[:40]!r} does not exist"
        remedy = f"use one of {', '.join(known)}"
        raise PuzzleError(problem, "unknown-difficulty", remedy)


class Ballot:
    """Votes for the answer of a puzzle without proofs.

    Candidates rank as in ARC's scoring: by number of votes, then by the mean trust of the voters.
    """

    def __init__(self) -> None:
        self._trusts: dict[Hashable, list[float]] = {}

    def cast(self, candidate: Hashable, q_halt: float) -> None:
        # This form of the sigmoid cannot overflow.
        trust = 0.5 * (1 + math.tanh(q_halt / 2))
        self._trusts.setdefault(candidate, []).append(trust)

    def votes(self, candidate: Hashable) -> int:
        return len(self._trusts.get(candidate, ()))

    def ranked(self) -> list[Hashable]:
        """All candidates, best first. Ties keep the order of the first votes."""
        return sorted(self._trusts, key=self.rank, reverse=True)

    def leader(self) -> Hashable | None:
        """The current winner; None before the first vote."""
        return max(self._trusts, key=self.rank, default=None)

    def is_decided(self, num_to_come: int) -> bool:
        """Whether the leader wins no matter how the remaining `num_to_come` votes go."""
        counts = [len(trusts) for trusts in self._trusts.values()]
        counts += [0, 0]
        counts.sort(reverse=True)
        return counts[0] > counts[1] + num_to_come

    def rank(self, candidate: Hashable) -> tuple[int, float]:
        trusts = self._trusts[candidate]
        mean_trust = sum(trusts) / len(trusts)
        return len(trusts), mean_trust
