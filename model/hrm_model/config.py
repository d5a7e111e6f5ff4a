"""The sizes and rules of one Hierarchical Reasoning Model, as written into a checkpoint's `config.json`."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Arch = Literal["hrm", "trm", "transformer"]
Blocks = Literal["attention", "mixer", "relational"]
Positions = Literal["rope", "learned", "none"]
MOST, FEW, MOST_VALUES = 1 << 24, 1 << 10, 1 << 31  # 80 times the published model, whose ARC has half of 1 << 30
HaltRule = Literal["difference", "q_halt"]


@dataclass(frozen=True, kw_only=True)
class HRMConfig:
    """Everything that determines the network; defaults are the published 27 M model (HRM, 2025).

    `arch` "trm" is the Tiny Recursive Model (2025): the low level's blocks are the high level's too, and gradients pass
    the whole last high cycle. "transformer" is the baseline of equal parameters: the same blocks one after another,
    once, so its cycles do not matter, its carry passes through and it has a single segment.
    `blocks` "mixer" have a SwiGLU over the positions in place of attention, "relational" are those of `relational.py`.
    With `random_start` each of their vectors has a random start of its own: what the relations cannot tell apart can be
    told apart, and a symmetric copy is another attempt.
    """

    vocab_size: int
    seq_len: int
    arch: Arch = "hrm"
    blocks: Blocks = "attention"
    board: tuple[int, ...] = ()  # of relational blocks: (rows, columns), or (bands, rows, stacks, columns)
    num_symbols: int = 1  # a position holds a vector for each of so many last tokens
    num_fixed: int = 0  # of them, the first, that are not exchanged with the others
    num_hints: int = 0  # kinds that the low level also learns in training
    random_start: bool = False
    num_puzzle_ids: int = 1
    puzzle_vector_size: int = 512  # width of a puzzle-embedding row; 0 leaves the prefix out
    puzzle_positions: int = 0  # that the row takes; 0: as many as it needs
    hidden_size: int = 512
    num_heads: int = 8
    expansion: float = 4.0
    high_cycles: int = 2
    low_cycles: int = 2
    high_layers: int = 4
    low_layers: int = 4
    positions: Positions = "rope"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_segments: int = 16
    halt_rule: HaltRule = "difference"  # q_halt - q_continue is the margin, or q_halt where q_continue is not learnt

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "seq_len", "num_puzzle_ids", "hidden_size", "max_segments")
        few = ("num_heads", "num_symbols", "high_cycles", "low_cycles", "high_layers", "low_layers")
        for name, most in (*((name, MOST) for name in sizes), *((name, FEW) for name in few)):
            value = getattr(self, name)
            is_size = isinstance(value, int) and 1 <= value <= most
            _require(is_size, f"{name} is {value!r}, but must be a whole number from 1 to {most}")
        for name in ("expansion", "rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            _require(isinstance(value, int | float) and 0 < value < MOST, f"{name} is {value!r}, but must be positive")
        for name, kind in (("arch", Arch), ("blocks", Blocks), ("positions", Positions), ("halt_rule", HaltRule)):
            value, choices = getattr(self, name), get_args(kind)
            _require(value in choices, f"{name} is {value!r}; choose {' or '.join(map(repr, choices))}")
        _require(
            self.hidden_size % (2 * self.num_heads) == 0,
            f"hidden_size {self.hidden_size} must be a multiple of twice num_heads {self.num_heads}, "
            "since rotary positions pair the halves of each head",
        )
        _require(
            self.arch != "transformer" or self.max_segments == 1,
            f"max_segments is {self.max_segments}, but a transformer answers in a single segment; set max_segments=1",
        )
        if self.blocks == "relational":
            self._check_relations()
        _require(
            self.arch != "trm" or self.high_layers == self.low_layers,
            f"high_layers is {self.high_layers} and low_layers {self.low_layers}, but a TRM has one level for both; "
            "set them alike",
        )
        size, room = self.puzzle_vector_size, self.puzzle_positions * self.hidden_size
        _require(size >= 0, f"puzzle_vector_size is {size}, but must not be negative")
        _require(
            self._num_values <= MOST_VALUES,
            f"hidden_size {self.hidden_size} and the other sizes make {self._num_values:.1e} values, but at most "
            f"{MOST_VALUES:.1e} are allocated; take smaller ones",
        )
        _require(
            self.puzzle_positions == 0 or 0 < size <= room,
            f"a puzzle vector of {size} values does not go with puzzle_positions {self.puzzle_positions} of "
            f"{self.hidden_size}; set puzzle_positions=0 for as many as it needs",
        )

    def _check_relations(self) -> None:
        board, symbols = self.board, self.num_symbols
        _require(
            len(board) in (2, 4) and math.prod(board) == self.seq_len,
            f"board {board} does not give {self.seq_len} positions as rows and columns, or as bands, rows, stacks and "
            "columns; take the puzzle's own geometry",
        )
        _require(
            self.hidden_size % symbols == 0 and symbols <= self.vocab_size and 0 <= self.num_fixed < symbols,
            f"hidden_size {self.hidden_size} does not share out among {symbols} symbols, {self.num_fixed} of them "
            "fixed; choose a multiple",
        )
        _require(
            not self.has_colours or (symbols == self.vocab_size and self.num_channels % (4 * self.num_heads) == 0),
            f"{symbols} of {self.vocab_size} tokens, {self.num_channels} channels and {self.num_heads} heads do "
            "not go with a plain board; choose 1 symbol or all, and channels a multiple of four times num_heads",
        )
        _require(
            self.arch == "hrm" and self.positions == "rope" and self.puzzle_positions == 0,
            "relational blocks know no prefix, learned positions, TRM or transformer; leave arch and positions as they "
            "are and set puzzle_positions=0",
        )
        size = self.puzzle_vector_size
        _require(
            size == 0 or (self.has_colours and size % symbols == 0),
            f"a puzzle vector of {size} values does not share out among {symbols} symbols of a board {board}; set "
            "puzzle_vector_size=0, or a multiple where the cells of a plain board hold symbols",
        )

    @property
    def _num_values(self) -> float:
        """What the network allocates, roughly and rather too much."""
        of_layers = (self.high_layers + self.low_layers) * (4 + 3 * self.expansion) * self.hidden_size**2
        of_positions = (self.vocab_size + 2 * self.num_positions) * self.hidden_size
        return of_layers + of_positions + self.num_puzzle_ids * self.puzzle_vector_size

    @property
    def has_colours(self) -> bool:
        """Whether cells of a plain board hold symbols (ARC)."""
        return self.blocks == "relational" and len(self.board) == 2 and self.num_symbols > 1

    @property
    def is_rotary(self) -> bool:
        return self.has_colours or (self.positions == "rope" and self.blocks == "attention")

    @property
    def num_channels(self) -> int:
        """Width of one vector: of a candidate where symbols can be exchanged, else of a position."""
        return self.hidden_size // self.num_symbols

    @property
    def inner_size(self) -> int:
        """Width inside a relational block."""
        return round(self.expansion * self.num_channels)

    @property
    def prefix_len(self) -> int:
        """Positions in front of the puzzle's tokens that carry its embedding row (zero-padded to whole positions).

        None of relational blocks, which add it to every position.
        """
        if self.blocks == "relational":
            return 0
        return self.puzzle_positions or -(-self.puzzle_vector_size // self.hidden_size)

    @property
    def num_positions(self) -> int:
        return self.prefix_len + self.seq_len

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_learnt_steps(self) -> int:
        """How many low calls of a segment, its last, keep a gradient: as published, one of HRM, a cycle's of TRM.

        All of relational blocks, where a cycle is a single step.
        """
        if self.blocks == "relational":
            return self.high_cycles * self.low_cycles
        return self.low_cycles if self.arch == "trm" else 1

    @property
    def intermediate_size(self) -> int:
        """SwiGLU width."""
        return self.intermediate_of(self.hidden_size)

    def intermediate_of(self, width: int) -> int:
        """Two thirds of `expansion`, rounded up to a multiple of 256 as published."""
        return -(-round(self.expansion * width * 2 / 3) // 256) * 256

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "HRMConfig":
        """Refuses unknown keys, so that a misspelt setting never passes for a default."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        _require(not unknown, f"the model configuration has unknown keys {unknown}; known keys are {sorted(known)}")
        read: dict[str, Any] = {**values, "board": tuple(values.get("board", ()))}  # a list in JSON
        return cls(**read)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
