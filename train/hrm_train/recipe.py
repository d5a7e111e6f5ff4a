"""What a training run is: every setting that shapes its result, as one frozen record written beside the run."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from hrm_model.config import HRMConfig
from hrm_model.geometry import misfit
from hrm_puzzles.puzzle import Hinted, Puzzle

LossKind = Literal["softmax", "stablemax"]
Optimiser = Literal["adam_atan2", "adamw", "lion"]
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one run; sizes count samples (a sample is one puzzle for one segment), never iterations.

    `curriculum` opens with up to that many cells of each puzzle revealed, and the number falls while puzzles are being
    solved; 0 shows puzzles as they are. Gradients pass through `window` segments before each update (1 as published).
    At first a puzzle may run no longer than `window`; the limit reaches the model's after `deepening_samples`.
    `lr` and `puzzle_lr` are for a batch of `base_batch` and grow linearly with the real one (0: they hold for any).
    `lr_min_ratio` 1 keeps the rate constant after the warm-up, less ends a cosine there; `clip_norm` 0 never clips.
    `continue_loss` learns q_continue as published, for a second forward pass.
    `quantisation_aware` trains the model that INT8 will make of it; what is validated and saved stays in float.
    """

    puzzle: str = "sudoku"
    seed: int = 0
    batch_size: int = 64
    base_batch: int = 0
    window: int = 1
    total_samples: int = 4_000_000
    lr: float = 1e-3
    lr_min_ratio: float = 0.1
    warmup_samples: int = 8_000
    weight_decay: float = 0.1
    puzzle_lr: float = 1e-3
    puzzle_weight_decay: float = 0.1
    optimiser: Optimiser = "adam_atan2"
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    average_decay: float = 0.998
    loss: LossKind = "softmax"
    label_smoothing: float = 0.0
    continue_loss: bool = False
    halt_weight: float = 0.5
    explore: float = 0.1
    augment: bool = True
    curriculum: int = 0
    curriculum_target: float = 0.5
    deepening_samples: int = 0
    geometric_start: bool = False
    quantisation_aware: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "window", "total_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay is {self.average_decay}, but must lie in [0, 1); 0 keeps no average")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}, but must lie in [0, 1); 0 is none")
        for name, kinds in (("loss", LossKind), ("optimiser", Optimiser)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(get_args(kinds))}")

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
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


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
        except ValueError as error:
            raise ValueError(f"{key}={text!r} is no {kind.__name__}; give a value such as {default!r}") from error
    return replace(record, **values)


SIZES: dict[str, Values] = {
    "published": {},
    "log": {"hidden_size": 256, "puzzle_vector_size": 256, "low_layers": 3, "max_segments": 8},
    "small": {
        "hidden_size": 128,
        "num_heads": 4,
        "puzzle_vector_size": 128,
        "expansion": 2.0,
        **dict.fromkeys(("high_layers", "low_layers", "high_cycles", "low_cycles"), 1),
        "positions": "learned",
        "halt_rule": "q_halt",
        "max_segments": 24,
    },
    "trm": {
        "arch": "trm",
        "high_cycles": 3,
        "low_cycles": 6,
        **dict.fromkeys(("high_layers", "low_layers"), 2),
        "puzzle_positions": 16,
        "halt_rule": "q_halt",
    },
    "relational": {
        "blocks": "relational",
        "num_heads": 1,
        "puzzle_vector_size": 0,
        "expansion": 2.0,
        "high_layers": 1,
        "low_layers": 1,
        "low_cycles": 1,
        "halt_rule": "q_halt",
        "max_segments": 32,
    },
}
"""`published`: 27 M parameters as in the paper. `log`: 5.97 M, half its width and one low layer less, for cards of 8
GB (rounding the SwiGLU width to 256 makes it larger than the 5.7 M it was planned with). `small`: 0.34 M, for a CPU.
`trm`: as in its paper, 6.8 M with attention and 5 M with mixers."""

_PUBLISHED: Values = {
    "base_batch": 768,
    "lr": 1e-4,
    "lr_min_ratio": 1.0,
    "clip_norm": 0.0,
    "average_decay": 0.999,
    "loss": "stablemax",
    "continue_loss": True,
    "warmup_samples": 2000 * 768,
}  # as the published trainers, but for HRM's average, which is TRM's

OF_CANDIDATES: Values = {"hidden_size": 32, "high_cycles": 1, "random_start": True}
OF_CELLS: Values = {"hidden_size": 24, "high_cycles": 8}  # each cycle brings a cell news from one cell farther
"""Sizes of a relational model, by what one vector of its state stands for; `hidden_size` is that of one vector."""

RECIPES: dict[str, Values] = {
    "published": _PUBLISHED,
    "log": _PUBLISHED,
    "trm": {**_PUBLISHED, "continue_loss": False},
    "small": {"base_batch": 32, "lr": 1e-3, "beta2": 0.98, "window": 4},
    "relational": {
        "batch_size": 16,
        "window": 8,
        "lr": 3e-3,
        "lr_min_ratio": 0.02,
        "warmup_samples": 10_000,
        "weight_decay": 0.01,
        "halt_weight": 0.05,
        "explore": 0.3,
        "total_samples": 100_000,
    },
}

_SINGLE: Values = {"weight_decay": 1.0, "puzzle_lr": 1e-4, "puzzle_weight_decay": 1.0, "total_samples": 20_000_000}
_ARC: Values = {"weight_decay": 0.1, "puzzle_lr": 1e-2, "puzzle_weight_decay": 0.1, "total_samples": 300_000_000}
"""What the published recipes say: 26,041 updates of 768 samples for Sudoku-1k and Maze-1k, about 400,000 for ARC.
Logistics is ours and taken as a maze."""

_STARTS: dict[str, Values] = {
    "sudoku": {"curriculum": 28},
    "maze": {"deepening_samples": 400_000},
    "logistics": {"deepening_samples": 400_000},
}  # how a small model gets off the plateau, where it was measured to help (docs/log.md)


_EAGER: Values = {"precision": "fp32", "compile": "false"}  # as quick for a model so small, and a carry that goes deep
_HUB = "hub:sapientinc/"
NAMED: dict[str, Values] = {
    "sudoku-small": {
        "puzzle": "sudoku",
        "preset": "relational",
        "data": {"num_train": 6000, "num_test": 200, "difficulty": "minimal,hard"},
        "total_samples": 120_000,
        "warmup_samples": "10%",
        **_EAGER,
    },
    "log": {"puzzle": "arc", "preset": "log", "batch_size": 40, "micro_batch": 20, "base_batch": 0, "lr": 2.5e-4},
    "city": {
        "puzzle": "logistics",
        "preset": "log",
        "data": {"num_train": 960, "num_test": 400},
        "batch_size": 32,
        "base_batch": 0,
        "total_samples": "5 passes",
        "warmup_samples": "2 passes",
        "weight_decay": 0.1,
        "puzzle_lr": 1e-2,
        "puzzle_weight_decay": 0.1,
    },
    "sudoku-1k": {
        "puzzle": "sudoku",
        "preset": "published",
        "data": {"source": f"{_HUB}sudoku-extreme", "csv_sample": 1000},
    },
    "maze-1k": {"puzzle": "maze", "preset": "published", "data": {"source": f"{_HUB}maze-30x30-hard-1k"}},
    "trm-sudoku": {
        "puzzle": "sudoku",
        "preset": "trm",
        "data": {"source": f"{_HUB}sudoku-extreme", "csv_sample": 1000},
        "total_samples": 50_000_000,
        "blocks": "mixer",
        "positions": "none",
    },
    "trm-maze": {
        "puzzle": "maze",
        "preset": "trm",
        "data": {"source": f"{_HUB}maze-30x30-hard-1k"},
        "total_samples": 50_000_000,
        "low_cycles": 4,
    },
    "trm-arc": {"puzzle": "arc", "preset": "trm", "data": {"dataset": "arcagi"}, "low_cycles": 4},
    "arc-1": {"puzzle": "arc", "preset": "published", "data": {"dataset": "arcagi"}},
    "arc-2": {"puzzle": "arc", "preset": "published", "data": {"dataset": "arcagi2"}},
}
"""What `--recipe` stands for: a puzzle, a preset, what to build where data/RECIPE is absent, and settings.

docs/training.md says where each number is from.
"""


def config_for(preset: str, puzzle: Puzzle, num_puzzle_ids: int) -> HRMConfig:
    sizes: Values = dict(named(SIZES, "preset", preset))
    if preset == "relational":
        symbols, hints = puzzle.geometry.num_symbols, puzzle.num_hints if isinstance(puzzle, Hinted) else 0
        sizes |= {"board": puzzle.geometry.board, "num_symbols": symbols, "num_hints": hints}
        of_kind = OF_CANDIDATES if symbols > 1 else OF_CELLS
        sizes |= {**of_kind, "hidden_size": symbols * of_kind["hidden_size"]}
    return HRMConfig(vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, num_puzzle_ids=num_puzzle_ids, **sizes)


def recipe_for(preset: str, puzzle: Puzzle, batch_size: int) -> Recipe:
    """The preset's recipe at that batch; the small model starts from the puzzle's geometry where it can hold it."""
    family = puzzle.name.partition("-")[0]
    values: Values = {"puzzle": puzzle.name, "batch_size": batch_size, **named(RECIPES, "preset", preset)}
    if preset == "small":
        fits = misfit(config_for(preset, puzzle, 1), puzzle.geometry) is None
        return Recipe(**{**values, **_STARTS.get(family, {})}, geometric_start=fits)
    if preset == "relational":
        return Recipe(**values)
    return Recipe(**values, **(_ARC if family == "arc" else _SINGLE))


def named(table: dict[str, Values], option: str, name: str) -> Values:
    if name not in table:
        raise ValueError(f"--{option} {name!r} is unknown; choose {', '.join(table)}")
    return table[name]
