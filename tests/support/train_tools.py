"""A small real trainer on 4x4 Sudoku, and what its runs have on disk."""

from collections.abc import Sequence
from pathlib import Path

import torch

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import open_split
from hrm_train.evaluate import HeldOut, held_out
from hrm_train.hardware import PRESETS, Hardware
from hrm_train.loop import Trainer
from hrm_train.options import Intervals
from hrm_train.recipe import Recipe
from hrm_train.run import TrainingRun
from hrm_train.telemetry import Writer

PUZZLE = registry.get("sudoku-4x4")
SIZES = HRMConfig(
    vocab_size=PUZZLE.vocab_size,
    seq_len=PUZZLE.seq_len,
    hidden_size=32,
    num_heads=4,
    puzzle_vector_size=32,
    high_layers=1,
    low_layers=1,
    high_cycles=1,
    low_cycles=1,
    positions="learned",
    max_segments=4,
    halt_rule="q_halt",
)
STEP_SAMPLES = 16  # batch_size times window
TRAINING = (
    "--puzzle sudoku-4x4 --hw cpu --preset small --set hidden_size=32 --set puzzle_vector_size=32 "
    "--set max_segments=4 --set batch_size=8 --set total_samples=4800 --checkpoint-steps 20"
)
"""Of a short training under torchrun."""


def small_trainer(
    data: Path, hardware: Hardware = PRESETS["cpu"], config: HRMConfig = SIZES, **settings: object
) -> Trainer:
    sizes = {"batch_size": 8, "warmup_samples": 64, **settings}
    recipe = Recipe(puzzle=PUZZLE.name, **sizes)
    torch.manual_seed(recipe.seed)
    model = model_of(config)
    source = open_split(data, "train", PUZZLE)
    return Trainer(model, source, recipe, hardware)


def losses(trainer: Trainer, num_steps: int) -> list[float]:
    return [float(trainer.step().loss) for _ in range(num_steps)]


def training_run(
    path: Path,
    trainer: Trainer,
    writers: Sequence[Writer] = (),
    held: HeldOut | None = None,
    **intervals: float,
) -> TrainingRun:
    """Return a run; without `held`, it validates on the whole test split."""
    path.mkdir(exist_ok=True)
    held = held or held_out(open_split(trainer.feed.source.path, "test", PUZZLE), 40, seed=0)
    chosen = Intervals(**intervals)
    meta = {"puzzle": PUZZLE.name}
    return TrainingRun(path, trainer, held, chosen, meta, writers)


def fresh(data: Path, steps: int) -> list[str]:
    options = [f"--data={data}", "--puzzle=sudoku-4x4", "--hw=cpu", "--preset=small"]
    sizes = ("hidden_size=32", "puzzle_vector_size=32", "max_segments=4")
    recipe = ("batch_size=8", "window=2", f"total_samples={STEP_SAMPLES * steps}")
    # --hw cpu chooses others if the processor multiplies bfloat16.
    hardware = ("precision=fp32", "compile=false")
    for setting in (*sizes, *recipe, *hardware):
        options += ["--set", setting]
    return options


def latest(run: Path) -> Path | None:
    pointer = run / "latest"
    return checkpoint.resolve(pointer) if pointer.exists() else None


def weights_of(run: Path) -> bytes:
    """Return weights, moments and slots, to the bit."""
    folder = checkpoint.resolve(run / "latest")
    return (folder / "trainer.safetensors").read_bytes()
