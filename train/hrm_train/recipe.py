"""What a training run is: every setting that shapes its result, as one frozen record written beside the run."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from hrm_model.config import HRMConfig
from hrm_puzzles.puzzle import Hinted, Puzzle

LossKind = Literal["softmax", "stablemax"]
Optimiser = Literal["adam_atan2", "adamw"]
Values = dict[str, Any]
# what a mistyped setting may not pass: puzzles of an update, segments, samples that a float counts exactly
MOST = {"batch_size": 1 << 20, "window": 1 << 10, "total_samples": 1 << 53}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one run; sizes count samples (a sample is one puzzle for one segment), never iterations."""

    puzzle: str = "sudoku"
    seed: int = 0
    batch_size: int = 64
    base_batch: int = 0  # `lr` and `puzzle_lr` are for it and grow linearly with the real batch; 0: they hold for any
    window: int = 1  # segments that gradients pass through before each update
    total_samples: int = 4_000_000
    lr: float = 1e-3
    lr_min_ratio: float = 0.1  # where the cosine after the warm-up ends; 1 keeps the rate constant
    warmup_samples: int = 8_000
    weight_decay: float = 0.1
    puzzle_lr: float = 1e-3
    puzzle_weight_decay: float = 0.1
    optimiser: Optimiser = "adam_atan2"
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0  # 0 never clips
    average_decay: float = 0.998
    loss: LossKind = "softmax"
    label_smoothing: float = 0.0
    continue_loss: bool = False  # learns q_continue as published, for a second forward pass
    halt_weight: float = 0.5
    explore: float = 0.1
    augment: bool = True
    curriculum: int = 0  # so many cells of each puzzle are revealed at first, fewer while puzzles are being solved
    curriculum_target: float = 0.5
    deepening_samples: int = 0  # a puzzle's limit of segments grows from `window` to the model's until then
    quantisation_aware: bool = False  # learns as INT8 will compute; what is validated and saved stays in float

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be from 1 to {most}")
        for name, zero in (("average_decay", "keeps no average"), ("label_smoothing", "is none")):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must lie in [0, 1); 0 {zero}")
        for name, kinds in (("loss", LossKind), ("optimiser", Optimiser)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(get_args(kinds))}")

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> "Recipe":
        """As a run has written it; `geometric_start` is gone, and acted before the first step alone."""
        return Recipe(**{key: value for key, value in values.items() if key != "geometric_start"})

    def scaled(self, lr: float) -> float:
        """A learning rate of this recipe at its real batch."""
        return lr * self.batch_size / self.base_batch if self.base_batch else lr

    def rate_at(self, samples: int) -> float:
        """Share of the base rate after so many samples: linear warm-up, then a cosine to `lr_min_ratio`."""
        warmup, least = self.warmup_samples, self.lr_min_ratio
        if samples < warmup:
            return samples / warmup
        progress = min(1.0, (samples - warmup) / max(1, self.total_samples - warmup))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))

    def segments_at(self, samples: int, max_segments: int) -> int:
        """How many segments a puzzle may run after so many samples: a window more after each of equal parts."""
        if samples >= self.deepening_samples:
            return max_segments
        num_windows = -(-max_segments // self.window)
        return min(max_segments, self.window * (1 + (num_windows - 1) * samples // self.deepening_samples))

    @property
    def digest(self) -> str:
        text = json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def in_samples(settings: Mapping[str, str], usual: Recipe, samples_a_pass: Callable[[], int]) -> dict[str, str]:
    """The settings with lengths in samples, where they are given in passes over the data ("2 passes") or as "5%"."""
    found, total = dict(settings), float(usual.total_samples)
    for key in ("total_samples", "warmup_samples", "deepening_samples"):
        given = re.fullmatch(r"([\d.]+) *(%|pass|passes)", settings.get(key, ""))
        if given:
            whole = samples_a_pass() if given[2] != "%" else total / 100
            found[key] = str(round(float(given[1]) * whole))
        if key == "total_samples" and key in found:
            total = float(found[key])
    return found


def with_settings(record: Any, settings: Mapping[str, str]) -> Any:
    """A copy of a frozen record with textual settings (key=value of the command line) read in the fields' types."""
    values: Values = {}
    for key, text in settings.items():
        default = getattr(record, key)
        kind = type(default)
        try:
            if kind is bool:
                values[key] = {"true": True, "false": False}[text.lower()]
            else:
                values[key] = kind(float(text)) if kind is int else kind(text)
        except KeyError as error:
            raise ValueError(f"{key}={text!r} is no truth value; write true or false") from error
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{key}={text!r} is no {kind.__name__}; give a value such as {default!r}") from error
    return replace(record, **values)


TABLES: Values = yaml.safe_load((Path(__file__).parent / "recipes.yaml").read_text(encoding="utf-8"))
SIZES: dict[str, Values] = TABLES["sizes"]
RECIPES: dict[str, Values] = TABLES["recipes"]
NAMED: dict[str, Values] = TABLES["named"]


def config_for(preset: str, puzzle: Puzzle, num_puzzle_ids: int) -> HRMConfig:
    sizes: Values = dict(named(SIZES, "preset", preset))
    if preset == "relational":
        geometry, hints = puzzle.geometry, puzzle.num_hints if isinstance(puzzle, Hinted) else 0
        symbols = geometry.num_symbols
        sizes |= {"board": geometry.board, "num_symbols": symbols, "num_fixed": geometry.num_fixed, "num_hints": hints}
        kind = "candidates" if len(geometry.board) == 4 else "cells" if symbols == 1 else "colours"
        of_kind = TABLES["vectors"][kind]
        sizes |= {key: value * symbols if key.endswith("_size") else value for key, value in of_kind.items()}
    return HRMConfig(vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, num_puzzle_ids=num_puzzle_ids, **sizes)


def recipe_for(preset: str, puzzle: Puzzle, batch_size: int) -> Recipe:
    """The preset's recipe at that batch."""
    family = puzzle.name.partition("-")[0]
    values: Values = {"puzzle": puzzle.name, "batch_size": batch_size, **named(RECIPES, "preset", preset)}
    if preset == "small":
        return Recipe(**values, **TABLES["starts"].get(family, {}))
    if preset == "relational":
        return Recipe(**values)
    return Recipe(**values, **TABLES["published"]["arc" if family == "arc" else "others"])


def named(table: dict[str, Values], option: str, name: str) -> Values:
    if name not in table:
        raise ValueError(f"--{option} {name!r} is unknown; choose {', '.join(table)}")
    return table[name]
