"""Model sizes and recipes by name: what `hrm-train` uses when nothing else is said."""

from __future__ import annotations

from typing import Any

from hrm_model.config import HRMConfig
from hrm_model.geometry import misfit
from hrm_puzzles.puzzle import Puzzle
from hrm_train.recipe import Recipe

SIZES: dict[str, dict[str, Any]] = {
    "published": {},
    "log": {
        "hidden_size": 256,
        "num_heads": 8,
        "puzzle_vector_size": 256,
        "high_layers": 4,
        "low_layers": 3,
        "max_segments": 8,
    },
    "small": {
        "hidden_size": 128,
        "num_heads": 4,
        "puzzle_vector_size": 128,
        "expansion": 2.0,
        "high_layers": 1,
        "low_layers": 1,
        "high_cycles": 1,
        "low_cycles": 1,
        "positions": "learned",
        "halt_rule": "q_halt",
        "max_segments": 24,
    },
}
"""`published`: 27 M parameters as in the paper. `log`: 5.97 M, half its width and one low layer less, for cards of 8
GB (rounding the SwiGLU width to 256 makes it larger than the 5.7 M it was planned with). `small`: 0.34 M, for a CPU."""

_PUBLISHED: dict[str, Any] = {
    "base_batch": 768,
    "lr": 1e-4,
    "lr_min_ratio": 1.0,
    "clip_norm": 0.0,
    "average_decay": 0.999,
    "loss": "stablemax",
    "continue_loss": True,
    "warmup_samples": 2000 * 768,
}
"""As the published trainer, but for the average, which is TRM's."""

RECIPES: dict[str, dict[str, Any]] = {
    "published": _PUBLISHED,
    "log": _PUBLISHED,
    "small": {"base_batch": 32, "lr": 1e-3, "beta2": 0.98, "window": 4},
}

_ONE_PUZZLE_ID: dict[str, Any] = {
    "weight_decay": 1.0,
    "puzzle_lr": 1e-4,
    "puzzle_weight_decay": 1.0,
    "total_samples": 20_000_000,
}
_BY_FAMILY: dict[str, dict[str, Any]] = {
    "sudoku": _ONE_PUZZLE_ID,
    "maze": _ONE_PUZZLE_ID,
    "logistics": _ONE_PUZZLE_ID,
    "arc": {"weight_decay": 0.1, "puzzle_lr": 1e-2, "puzzle_weight_decay": 0.1, "total_samples": 300_000_000},
}
"""What the published recipes say for each puzzle: 26,041 updates for Sudoku-1k and Maze-1k, about 400,000 for ARC, of
768 samples. Logistics is ours and taken as a maze."""

_STARTS: dict[str, dict[str, Any]] = {
    "sudoku": {"curriculum": 28},
    "maze": {"deepening_samples": 400_000},
    "logistics": {"deepening_samples": 400_000},
}
"""How a small model gets off the plateau, where it was measured to help (docs/log.md)."""


def config_for(preset: str, puzzle: Puzzle, num_puzzle_ids: int) -> HRMConfig:
    sizes = _named(SIZES, preset)
    return HRMConfig(vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, num_puzzle_ids=num_puzzle_ids, **sizes)


def recipe_for(preset: str, puzzle: Puzzle, batch_size: int) -> Recipe:
    """The preset's recipe at that batch; the small model starts from the puzzle's geometry where it can hold it."""
    family = puzzle.name.partition("-")[0]
    values: dict[str, Any] = {"puzzle": puzzle.name, "batch_size": batch_size, **_named(RECIPES, preset)}
    if preset == "small":
        fits = misfit(config_for(preset, puzzle, 1), puzzle.geometry) is None
        return Recipe(**{**values, **_STARTS.get(family, {})}, geometric_start=fits)
    return Recipe(**values, **_BY_FAMILY.get(family, _ONE_PUZZLE_ID))


def _named(table: dict[str, dict[str, Any]], preset: str) -> dict[str, Any]:
    if preset not in table:
        raise ValueError(f"--preset {preset!r} is unknown; choose {', '.join(table)}")
    return table[preset]
