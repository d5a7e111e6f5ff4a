"""Model sizes and recipes by name: what `hrm-train` uses when nothing else is said."""

from __future__ import annotations

from typing import Any

from hrm_model.config import HRMConfig
from hrm_puzzles.puzzle import Puzzle
from hrm_train.recipe import Recipe

SIZES: dict[str, dict[str, Any]] = {
    "published": {},
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
"""`published`: 27 M parameters as in the paper. `small`: 0.34 M with a geometric start, for a CPU."""

RECIPES: dict[str, dict[str, Any]] = {
    "published": {
        "lr": 1e-4,
        "lr_min_ratio": 1.0,
        "weight_decay": 1.0,
        "puzzle_lr": 1e-4,
        "puzzle_weight_decay": 1.0,
        "loss": "stablemax",
        "continue_loss": True,
        "warmup_samples": 2000 * 768,
        "total_samples": 20_000_000,
    },
    "small": {"lr": 1e-3, "beta2": 0.98, "window": 4, "curriculum": 28, "geometric_start": True},
}


def config_for(preset: str, puzzle: Puzzle) -> HRMConfig:
    sizes = _named(SIZES, preset)
    return HRMConfig(
        vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, num_puzzle_ids=puzzle.num_puzzle_ids, **sizes
    )


def recipe_for(preset: str, puzzle: Puzzle, batch_size: int) -> Recipe:
    return Recipe(puzzle=puzzle.name, batch_size=batch_size, **_named(RECIPES, preset))


def _named(table: dict[str, dict[str, Any]], preset: str) -> dict[str, Any]:
    if preset not in table:
        raise ValueError(f"--preset {preset!r} is unknown; choose {', '.join(table)}")
    return table[preset]
