"""What a training run is: every setting that shapes its result, as one frozen record of the run."""

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from hrm_model.config import HRMConfig, num_hints_of, require_fields
from hrm_puzzles.puzzle import Puzzle

LossKind = Literal["softmax", "stablemax"]
Optimizer = Literal["adam_atan2", "adamw", "lion"]
Values = dict[str, Any]

LENGTHS = ("total_samples", "warmup_samples", "deepening_samples")
# A length in passes over the data, or in percent.
LENGTH = re.compile(r"(\d+\.?\d*|\.\d+) *(%|pass|passes)")
BOOLEANS = {"true": True, "false": False}


BELOW_ONE = math.nextafter(1.0, 0.0)
COUNT = 1 << 53  # largest count that a float holds exactly
RATE = 1e3  # far above any useful rate or weight, and finite

# The least and the largest value of each number.
RANGES = {
    "seed": (0, COUNT),
    "batch_size": (1, 1 << 20),  # puzzles per update
    "base_batch": (0, 1 << 20),
    "window": (1, 1 << 10),  # segments
    "total_samples": (1, COUNT),
    "warmup_samples": (0, COUNT),
    "deepening_samples": (0, COUNT),
    "lr": (0, RATE),
    "lr_min_ratio": (0, 1),
    "weight_decay": (0, RATE),
    "puzzle_lr": (0, RATE),
    "puzzle_weight_decay": (0, RATE),
    "beta1": (0, BELOW_ONE),
    "beta2": (0, BELOW_ONE),
    "clip_norm": (0, COUNT),
    "average_decay": (0, BELOW_ONE),
    "label_smoothing": (0, BELOW_ONE),
    "halt_weight": (0, RATE),
    "explore": (0, 1),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one run. Lengths count samples: one sample is one puzzle for one segment."""

    puzzle: str = "sudoku"
    seed: int = 0
    batch_size: int = 64
    base_batch: int = 0  # batch size of `lr` and `puzzle_lr`, which scale with it; 0: no scaling
    window: int = 1  # segments that gradients flow through before each update
    total_samples: int = 4_000_000
    lr: float = 1e-3
    lr_min_ratio: float = 0.1  # share of `lr` at the end of the cosine; 1: a constant rate
    warmup_samples: int = 8_000
    weight_decay: float = 0.1
    puzzle_lr: float = 1e-3
    puzzle_weight_decay: float = 0.1
    optimizer: Optimizer = "adam_atan2"
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0  # 0: never clips
    average_decay: float = 0.998  # 0: no average
    loss: LossKind = "softmax"
    label_smoothing: float = 0.0
    continue_loss: bool = False  # learns q_continue as published, in a second forward pass
    halt_weight: float = 0.5
    explore: float = 0.1
    augment: bool = True
    deepening_samples: int = 0  # samples until the limit has grown from `window` to the model's

    def __post_init__(self) -> None:
        require_fields(self, RANGES)

    def scaled(self, lr: float) -> float:
        """Scales a learning rate of this recipe to its real batch."""
        if not self.base_batch:
            return lr
        return lr * self.batch_size / self.base_batch

    def rate_at(self, samples: int) -> float:
        """Share of the base rate: a linear warm-up, then a cosine to `lr_min_ratio`."""
        warmup = self.warmup_samples
        if samples < warmup:
            return samples / warmup
        least = self.lr_min_ratio
        progress = min(1.0, (samples - warmup) / max(1, self.total_samples - warmup))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))

    def segments_at(self, samples: int, max_segments: int) -> int:
        """Segments that a puzzle may run; deepening adds one window after each of equal parts."""
        if samples >= self.deepening_samples:
            return max_segments
        num_windows = -(-max_segments // self.window)
        num_open = 1 + (num_windows - 1) * samples // self.deepening_samples
        return min(max_segments, self.window * num_open)


def in_samples(
    settings: Mapping[str, str], usual: Recipe, samples_a_pass: Callable[[], int]
) -> dict[str, str]:
    """Converts lengths in passes over the data ("2 passes") or in percent ("5%") to samples."""
    found = dict(settings)
    total = usual.total_samples
    for key in LENGTHS:
        length = LENGTH.fullmatch(settings.get(key, ""))
        if length:
            unit = total / 100
            if length[2] != "%":
                unit = samples_a_pass()
            found[key] = str(round(float(length[1]) * unit))
        if key == "total_samples" and key in found:
            total = _read(key, found[key], usual.total_samples)
    return found


def with_texts(record: Any, settings: Mapping[str, str]) -> Any:
    """Returns a copy of a frozen record, changed by texts that are read as the fields' types."""
    values = {key: _read(key, text, getattr(record, key)) for key, text in settings.items()}
    return replace(record, **values)


def _read(key: str, text: str, default: Any) -> Any:
    kind = type(default)
    if kind is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError(f"{key}={text!r} is not a boolean; write true or false")
        return BOOLEANS[text.lower()]
    with contextlib.suppress(ValueError):
        if kind is not int:
            return kind(text)
        if float(text).is_integer():
            return int(float(text))
    raise ValueError(
        f"{key}={text!r} is not of type {kind.__name__}; give a value such as {default!r}"
    )


TABLES: Values = yaml.safe_load(
    (Path(__file__).parent / "recipes.yaml").read_text(encoding="utf-8")
)
SIZES: dict[str, Values] = TABLES["sizes"]
RECIPES: dict[str, Values] = TABLES["recipes"]
NAMED: dict[str, Values] = TABLES["named"]


def config_for(preset: str, puzzle: Puzzle, num_puzzle_ids: int) -> HRMConfig:
    """The sizes of a preset, on the puzzle's board if its blocks are relational."""
    sizes: Values = dict(named(SIZES, "--preset", preset))
    if preset == "relational":
        sizes |= _relational_sizes(puzzle)
    return HRMConfig(
        vocab_size=puzzle.vocab_size,
        seq_len=puzzle.seq_len,
        num_puzzle_ids=num_puzzle_ids,
        **sizes,
    )


def _relational_sizes(puzzle: Puzzle) -> Values:
    """The board, and the sizes of `vectors` in recipes.yaml times the vectors of a cell."""
    geometry = puzzle.geometry
    kind = "colors"
    if len(geometry.board) == 4:
        kind = "candidates"
    elif geometry.num_symbols == 1:
        kind = "cells"
    sizes: Values = {}
    for key, value in TABLES["vectors"][kind].items():
        sizes[key] = value
        if key.endswith("_size"):
            sizes[key] = value * geometry.num_symbols
    sizes["board"] = geometry.board
    sizes["num_symbols"] = geometry.num_symbols
    sizes["num_fixed"] = geometry.num_fixed
    sizes["num_hints"] = num_hints_of(puzzle)
    return sizes


def recipe_for(preset: str, puzzle: Puzzle, batch_size: int) -> Recipe:
    """The preset's recipe at this batch size."""
    family = puzzle.name.partition("-")[0]
    values: Values = {"puzzle": puzzle.name, "batch_size": batch_size}
    values |= named(RECIPES, "--preset", preset)
    if preset == "small":
        return Recipe(**values, **TABLES["starts"].get(family, {}))
    if preset == "relational":
        return Recipe(**values)
    published = TABLES["published"]
    return Recipe(**{**values, **published.get(family, published["others"])})


def named(table: dict[str, Values], kind: str, name: str) -> Values:
    """The row with this name; rejects an unknown name."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown; choose {', '.join(table)}")
    return table[name]
