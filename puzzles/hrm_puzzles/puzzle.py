"""What a puzzle promises: grids to tokens and back, parsing, checking, generating, symmetries.

A verdict says what is known about an answer: RIGHT (proven), WRONG (disproven), UNKNOWN (no proof exists).
Shapes: B batch, N examples, T tokens (cells), G partitions of the positions.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

RIGHT = 1
WRONG = 0
UNKNOWN = -1
BLANK_IDENTIFIER = "<blank>"
"""The name of row 0 of a puzzle table: no task in particular."""

Grid = NDArray[np.int8]
IntArray = NDArray[np.integer]


class PuzzleError(ValueError):
    """A puzzle that cannot be accepted; its text is one sentence with the value, the expectation and the remedy.

    `rule` is a stable slug, `cell` the (row, column) from 1 where one cell is to blame, `remedy` the next step.
    """

    def __init__(self, problem: str, rule: str, remedy: str, cell: tuple[int, int] | None = None) -> None:
        super().__init__(problem, rule, remedy, cell)  # all arguments, so that the error survives pickling
        self.problem = problem
        self.rule = rule
        self.remedy = remedy
        self.cell = cell

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}."


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How a question was written, so that its answer is written the same way.

    `kind` is the puzzle's own word for the form ("text", "rows", "flat"), `blank` the value of an open cell. For text,
    `template` is the text itself and `cells` the offset of each cell in it.
    """

    kind: str
    blank: str | int | None
    template: str = ""
    cells: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A question as asked; `identifier` names its row of the puzzle table where a puzzle has many (ARC tasks)."""

    grid: Grid
    notation: Notation
    identifier: str | None = None


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How positions lie and which tokens are alike: all that relational blocks know of a puzzle.

    `board` are the lengths of the axes that the positions lie along: (rows, columns) of a grid, or (bands, rows,
    stacks, columns) of a board in boxes. The last `num_symbols` tokens can be exchanged for one another, but for the
    first `num_fixed` of them.
    """

    board: tuple[int, ...]
    num_symbols: int = 1
    num_fixed: int = 0


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question with its proven answer; `rating` is the puzzle's own measure of difficulty."""

    question: Grid
    answer: Grid
    rating: int


class Symmetry(Protocol):
    """A transformation of a puzzle together with its answer; `invert` undoes `apply` exactly."""

    def apply(self, tokens_BT: IntArray) -> NDArray[np.int32]: ...

    def invert(self, tokens_BT: IntArray) -> NDArray[np.int32]: ...


class Puzzle(Protocol):
    """One kind of puzzle of one size; stateless, so that it can be shared between threads."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def num_puzzle_ids(self) -> int: ...
    @property
    def proof_exists(self) -> bool: ...
    @property
    def difficulties(self) -> tuple[str, ...]: ...

    @property
    def geometry(self) -> Geometry:
        """What a model may know of the positions before training."""
        ...

    def parse(self, notation: object) -> Parsed:
        """Read any notation a person would send; raises PuzzleError and nothing else."""
        ...

    def sample(self, identifiers: Sequence[str]) -> object:
        """A question as a person would send it; `identifiers` are the tasks that a model knows."""
        ...

    def asked(self, grid: Grid, identifier: str) -> object:
        """This question as a person would send it; `identifier` names its row of the puzzle table."""
        ...

    def write(self, grid: Grid, notation: Notation) -> object:
        """Write a grid as a JSON value in the notation a puzzle was asked in."""
        ...

    def encode(self, grid: Grid) -> NDArray[np.int32]:
        """Grid to tokens [T]."""
        ...

    def decode(self, tokens_T: IntArray) -> Grid:
        """Tokens to grid; a token that stands for no value becomes a blank."""
        ...

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> NDArray[np.int8]:
        """Verdict of each answer, int8 [B]."""
        ...

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A fresh puzzle; the same generator state gives the same puzzle."""
        ...

    def symmetry(self, rng: np.random.Generator) -> Symmetry:
        """A random symmetry, applied to a whole batch and undone exactly."""
        ...

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """A fresh random symmetry for each row, for training."""
        ...

    def reveal_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray, num_revealed_B: IntArray
    ) -> NDArray[np.int32]:
        """Fill that many random open cells of each row with their label (fewer where fewer are open)."""
        ...

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> NDArray[np.uint64]:
        """A number that all symmetric copies of an example share, to keep test sets apart from training sets."""
        ...

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """A text board; with `question`, its givens stand out."""
        ...


# What a puzzle may offer besides


@dataclass(frozen=True, kw_only=True)
class Leg:
    """The part of a route from the stop before to the cell `to`: its cost, and the cells it enters, `to` the last."""

    to: tuple[int, int]
    cost: int
    cells: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way that an answer marks, without legs and cost where it leads nowhere; cells are (row, column) from 0."""

    start: tuple[int, int]
    legs: list[Leg]
    cost: int | None
    optimum: int  # least cost of any way, found by search: it judges an answer and never takes its place


@runtime_checkable
class Routed(Protocol):
    """Answers that are a way through the board."""

    def route(self, question: Grid, answer: Grid) -> Route: ...


@runtime_checkable
class Described(Protocol):
    """Notations to show people: `about` says what stands for what, `forms` names each for a question as `asked`."""

    @property
    def about(self) -> str: ...

    def forms(self, asked: Any) -> dict[str, object]: ...


@runtime_checkable
class Coloured(Protocol):
    """Cells that are shown as colours."""

    @property
    def palette(self) -> Mapping[int, str]:
        """The colour of each value of a grid, as #rrggbb."""
        ...


@runtime_checkable
class CsvForm(Protocol):
    """Data sets in the published CSV form."""

    def board_of(self, text: str) -> Grid:
        """The cells of a question or an answer, one character a cell; raises PuzzleError, does not judge the board."""
        ...


class Hints(NamedTuple):
    """What each position can know on the way to the answer, where news moves on by one position in a cycle."""

    kinds_BT: NDArray[np.int32]  # a further thing to learn, below `num_hints`; -1 where there is nothing
    after_BT: NDArray[np.int32]  # cycles until it can be known; until then the kind is 0
    answer_after_BT: NDArray[np.int32]  # cycles until the label can be known; until then it is the question's token


@runtime_checkable
class Hinted(Protocol):
    """A way to the answer that training shows; it is never served."""

    @property
    def num_hints(self) -> int: ...

    def hints(self, inputs_BT: IntArray, labels_BT: IntArray) -> Hints: ...


@runtime_checkable
class WellFormed(Protocol):
    """Answers that cannot be proven, but may be no answer at all."""

    def is_well_formed_B(self, tokens_BT: IntArray) -> NDArray[np.bool_]: ...


@runtime_checkable
class Voting(Protocol):
    """Variants of a question that vote for one answer."""

    def pass_at(
        self,
        names: Sequence[str],
        inputs_NT: IntArray,
        labels_NT: IntArray,
        answers_NT: IntArray,
        q_halt_N: NDArray[np.floating],
    ) -> dict[int, float]:
        """For each k of `voting.TRIALS` the share of tasks whose answer is among the first k grids voted for."""
        ...


@runtime_checkable
class NamedVariants(Protocol):
    """Copies that are rows of the puzzle table with names of their own, as those of an ARC task."""

    def variant_of(self, name: str) -> tuple[str, Symmetry]:
        """The task behind a name, and the symmetry that makes this variant of its puzzles."""
        ...


def require_difficulty(difficulty: str, known: Collection[str]) -> None:
    if difficulty not in known:
        remedy = f"use one of {', '.join(known)}"
        raise PuzzleError(f"there is no difficulty {difficulty[:40]!r}", "unknown-difficulty", remedy)


@dataclass(kw_only=True)
class Ballot:
    """Votes where no proof exists, ranked as ARC is scored: by number, then by the voters' mean trust."""

    _trusts: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])

    def cast(self, candidate: Hashable, q_halt: float) -> None:
        trust = 0.5 * (1 + math.tanh(q_halt / 2))  # the sigmoid, which so cannot overflow
        self._trusts.setdefault(candidate, []).append(trust)

    def votes(self, candidate: Hashable) -> int:
        return len(self._trusts.get(candidate, ()))

    def ranked(self) -> list[Hashable]:
        """All candidates, the best first; equals in the order in which they were first named."""
        return sorted(self._trusts, key=self.rank, reverse=True)

    def leader(self) -> Hashable | None:
        """Who would win now; None before the first vote."""
        return max(self._trusts, key=self.rank, default=None)

    def is_decided(self, num_to_come: int) -> bool:
        """Whether no number of votes to come can overtake the leader."""
        counts = sorted((len(trusts) for trusts in self._trusts.values()), reverse=True)
        first, second = (*counts, 0, 0)[:2]
        return first > second + num_to_come

    def rank(self, candidate: Hashable) -> tuple[int, float]:
        trusts = self._trusts[candidate]
        return len(trusts), sum(trusts) / len(trusts)
