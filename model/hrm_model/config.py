"""The sizes and rules of one Hierarchical Reasoning Model, as in a checkpoint's `config.json`.

`HRMConfig` is the one record of all families, because it is the format of files on disk. Each
group of fields says which family reads it, and `_check_FAMILY` rejects values that a family
cannot use.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hrm_host.reading import is_list, is_object
from hrm_puzzles.puzzle import Geometry, Hinted, Puzzle

Arch = Literal["hrm", "trm", "transformer"]
Blocks = Literal["attention", "mixer", "relational"]
Positions = Literal["rope", "learned", "none"]
HaltRule = Literal["difference", "q_halt"]
T = TypeVar("T")

MOST = 1 << 24  # maximum of any width, length or number of puzzle ids
FEW = 1 << 10  # maximum number of heads, symbols, cycles and layers
# Maximum values of all tensors: 80 times the published model, whose ARC has half of 1 << 30.
MOST_VALUES = 1 << 31
SWIGLU_MULTIPLE = 256  # the published SwiGLU width is a multiple of it

SMALL = 1e-30  # minimum of a factor; float32 holds it
# The least and the largest value of each number.
RANGES = {
    **dict.fromkeys(
        ("vocab_size", "seq_len", "num_puzzle_ids", "hidden_size", "max_segments"), (1, MOST)
    ),
    **dict.fromkeys(
        ("num_heads", "num_symbols", "high_cycles", "low_cycles", "high_layers", "low_layers"),
        (1, FEW),
    ),
    "num_hints": (0, FEW),
    "puzzle_vector_size": (0, MOST),
    **dict.fromkeys(("expansion", "rope_theta", "rms_norm_eps"), (SMALL, MOST)),
}

WORD_OF_TYPE = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True, kw_only=True)
class HRMConfig:
    """Everything that determines the network; defaults are the published 27 M model (HRM, 2025).

    `arch`: "trm" is the Tiny Recursive Model (2025). One level serves as low and high level, and
    gradients flow through the last high cycle. "transformer" is the baseline of equal size.
    It runs the same blocks once, one after another, so it ignores cycles, passes its carry
    through, and has a single segment.

    `blocks`: "mixer" blocks have a SwiGLU over the positions instead of attention. "relational"
    blocks are those of `families.py`.

    `random_start` gives each vector of a relational model a random start of its own. The model
    can then tell apart what the relations cannot, and a symmetric copy is another attempt.
    """

    vocab_size: int
    seq_len: int
    arch: Arch = "hrm"
    blocks: Blocks = "attention"
    # relational blocks
    board: tuple[int, ...] = ()  # (rows, columns), or (bands, rows, stacks, columns)
    num_symbols: int = 1  # the last tokens of the vocabulary; a position holds a vector for each
    num_fixed: int = 0  # the first symbols, which are not exchanged with the others
    num_hints: int = 0  # kinds that the low level also learns in training
    random_start: bool = False
    # all families
    num_puzzle_ids: int = 1
    puzzle_vector_size: int = 512  # width of a puzzle-embedding row; 0: none
    puzzle_positions: int = 0  # positions that hold the row; 0: as many as it needs
    hidden_size: int = 512
    num_heads: int = 8
    expansion: float = 4.0
    high_cycles: int = 2
    low_cycles: int = 2
    high_layers: int = 4
    low_layers: int = 4
    # attention blocks
    positions: Positions = "rope"
    rope_theta: float = 10000.0
    # all families
    rms_norm_eps: float = 1e-5
    max_segments: int = 16
    halt_rule: HaltRule = (
        "difference"  # margin: q_halt - q_continue, or q_halt if q_continue is untrained
    )

    def __post_init__(self) -> None:
        require_fields(self, RANGES)
        self._check_shared()
        if self.blocks == "relational":
            self._check_relational()
        self._check_puzzle_vector()
        self._check_total()

    def _check_shared(self) -> None:
        _require(
            self.hidden_size % (2 * self.num_heads) == 0,
            f"hidden_size {self.hidden_size} must be a multiple of twice num_heads "
            f"{self.num_heads}, because rotary positions pair the halves of each head",
        )

        _require(
            self.arch != "transformer" or self.max_segments == 1,
            f"max_segments is {self.max_segments}, but a transformer answers in a single segment; "
            "set max_segments=1",
        )

        _require(
            self.arch != "trm" or self.high_layers == self.low_layers,
            f"high_layers is {self.high_layers} and low_layers is {self.low_layers}, but a TRM has "
            "one level for both; set them alike",
        )

    def _check_relational(self) -> None:
        symbols = self.num_symbols
        geometry = Geometry(board=self.board, num_symbols=symbols, num_fixed=self.num_fixed)
        geometry.require(self.seq_len, self.vocab_size)
        _require(
            self.hidden_size % symbols == 0,
            f"hidden_size {self.hidden_size} does not divide among {symbols} symbols; choose a "
            "multiple",
        )
        _require(
            not self.has_colors or self.num_channels % (4 * self.num_heads) == 0,
            f"{self.num_channels} channels and {self.num_heads} heads do not fit a plain board; "
            "choose channels a multiple of four times num_heads",
        )
        _require(
            self.arch == "hrm" and self.positions == "rope" and self.puzzle_positions == 0,
            "relational blocks do not support a prefix, learned positions, TRM or transformer; "
            "keep the defaults of arch and positions and set puzzle_positions=0",
        )
        size = self.puzzle_vector_size
        _require(
            size == 0 or (self.has_colors and size % symbols == 0),
            f"a puzzle vector of {size} values does not divide among {symbols} symbols of a board "
            f"{self.board}; set puzzle_vector_size=0, or a multiple if the cells of a plain "
            "board hold symbols",
        )

    def _check_puzzle_vector(self) -> None:
        size = self.puzzle_vector_size
        room = self.puzzle_positions * self.hidden_size
        _require(
            self.puzzle_positions == 0 or 0 < size <= room,
            f"a puzzle vector of {size} values does not fit puzzle_positions "
            f"{self.puzzle_positions} of {self.hidden_size}; set puzzle_positions=0 for as many as "
            "it needs",
        )

    def _check_total(self) -> None:
        """Bound the number of values that the network allocates."""
        num_layers = self.high_layers + self.low_layers
        of_layers = num_layers * (4 + 3 * self.expansion) * self.hidden_size**2
        of_positions = (self.vocab_size + 2 * self.num_positions) * self.hidden_size
        num_values = of_layers + of_positions + self.num_puzzle_ids * self.puzzle_vector_size
        _require(
            num_values <= MOST_VALUES,
            f"hidden_size {self.hidden_size} and the other sizes make {num_values:.1e} "
            f"values, but at most {MOST_VALUES:.1e} are allocated; choose smaller ones",
        )

    @property
    def family(self) -> str:
        """Which class of `families.py` the network is."""
        if self.blocks == "relational":
            return "relational"
        return self.arch

    @property
    def has_units(self) -> bool:
        """Whether the board has rows, columns and boxes (Sudoku)."""
        return len(self.board) == 4

    @property
    def has_colors(self) -> bool:
        """Whether the cells of a plain board hold symbols (ARC)."""
        return self.blocks == "relational" and len(self.board) == 2 and self.num_symbols > 1

    @property
    def is_rotary(self) -> bool:
        return self.has_colors or (self.positions == "rope" and self.blocks == "attention")

    @property
    def num_channels(self) -> int:
        """Width of one vector: a candidate's if symbols can be exchanged, else a position's."""
        return self.hidden_size // self.num_symbols

    @property
    def inner_size(self) -> int:
        """Width inside a relational block."""
        return round(self.expansion * self.num_channels)

    @property
    def prefix_len(self) -> int:
        """Positions in front of the tokens that hold the puzzle's vector, zero-padded.

        Relational blocks have none: they add the vector to every position.
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
        """Low steps at the end of a segment that keep a gradient: 1 in HRM, a cycle in TRM.

        Relational blocks keep all, because one of their cycles is a single step.
        """
        if self.blocks == "relational":
            return self.high_cycles * self.low_cycles
        if self.arch == "trm":
            return self.low_cycles
        return 1

    @property
    def intermediate_size(self) -> int:
        """SwiGLU width."""
        return self.intermediate_of(self.hidden_size)

    def intermediate_of(self, width: int) -> int:
        """Two thirds of `expansion`, rounded up to a multiple of SWIGLU_MULTIPLE as published."""
        wanted = round(self.expansion * width * 2 / 3)
        return -(-wanted // SWIGLU_MULTIPLE) * SWIGLU_MULTIPLE

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def record_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """A record from JSON values, which have lists instead of tuples.

    Raises ValueError for a value of another type, and for an unknown key, so a misspelled setting
    never becomes a default.
    """
    _require(is_object(values), f"{kind.__name__} is {values!r}, but must be a JSON object")
    types = get_type_hints(kind)
    unknown = sorted(set(values) - types.keys())
    _require(
        not unknown,
        f"{kind.__name__} has unknown keys {unknown}; known keys are {sorted(types)}",
    )
    read: dict[str, Any] = {}
    for name, value in values.items():
        expected = types[name]
        wanted = WORD_OF_TYPE.get(expected, "a list of whole numbers")
        _require(_is_of(expected, value), f"{name} is {value!r}, but must be {wanted}")
        read[name] = tuple(value) if isinstance(value, list) else value
    return kind(**read)


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value of JSON has the type of a field; the record itself checks a Literal."""
    if get_origin(kind) is Literal:
        return True
    if get_origin(kind) is tuple:
        return is_list(value) and all(type(number) is int for number in value)
    return type(value) is kind or (kind is float and type(value) is int)


def require_fields(record: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises ValueError for a number that is out of its range or NaN, and for an unknown choice."""
    for name, (least, most) in ranges.items():
        value = getattr(record, name)
        _require(least <= value <= most, f"{name} is {value}, but must be from {least} to {most}")
    for name, kind in get_type_hints(type(record)).items():
        if get_origin(kind) is Literal:
            value = getattr(record, name)
            listed = " or ".join(map(repr, get_args(kind)))
            _require(value in get_args(kind), f"{name} is {value!r}; choose {listed}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def num_hints_of(puzzle: Puzzle) -> int:
    """How many kinds of hints the puzzle gives in training."""
    if isinstance(puzzle, Hinted):
        return puzzle.num_hints
    return 0
