"""The small real thing: a trainer on 4x4 Sudoku, and hrm-train processes that start with torch imported already."""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_train.batches import Feed, open_source
from hrm_train.hardware import PRESETS, Hardware
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe

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
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["hrm_train.session", "torch._dynamo", "torch.utils.tensorboard", "matplotlib.figure"])


def small_trainer(
    data: Path, hardware: Hardware = PRESETS["cpu"], config: HRMConfig = SIZES, **settings: object
) -> Trainer:
    sizes = {"batch_size": 8, "warmup_samples": 64, **settings}
    recipe = Recipe(puzzle=PUZZLE.name, **sizes)  # type: ignore[arg-type]
    torch.manual_seed(recipe.seed)
    model = HRM(config)
    feed = Feed(open_source(data, "train", PUZZLE), PUZZLE, seed=recipe.seed, augment=recipe.augment)
    return Trainer(model, feed, recipe, hardware)


def fresh(data: Path, steps: int) -> list[str]:
    """Options of a new run of that model."""
    sizes = ("hidden_size=32", "puzzle_vector_size=32", "max_segments=4")
    recipe = ("batch_size=8", "window=2", f"total_samples={16 * steps}")
    alike = ("precision=fp32", "compile=false")  # --hw cpu chooses others where the processor multiplies bfloat16
    settings = [part for setting in (*sizes, *recipe, *alike) for part in ("--set", setting)]
    return ["--data", str(data), "--puzzle", "sudoku-4x4", "--hw", "cpu", "--preset", "small", *settings]


def train(run: Path, *options: str, largest_file: int | None = None) -> ForkServerProcess:
    """hrm-train in a process of its own; what it says goes to `RUN.log`, and files may be limited in size (bytes)."""
    arguments = (["--run", str(run), *options], run.with_suffix(".log"), largest_file)
    process = FORK.Process(target=_hrm_train, args=arguments)
    process.start()
    return process


def said(run: Path) -> str:
    log = run.with_suffix(".log")
    return " ".join(log.read_text().split()) if log.exists() else ""


def _hrm_train(arguments: list[str], log: Path, largest_file: int | None) -> None:
    """The command as a shell would start it: its own standard error, its own exit code."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    from hrm_train.cli import main

    sys.argv = ["hrm-train", *arguments]
    main()


def latest(run: Path) -> Path | None:
    return checkpoint.resolve(run / "latest") if (run / "latest").exists() else None


def weights_of(run: Path) -> bytes:
    """Weights, moments and slots, to the bit."""
    return (checkpoint.resolve(run / "latest") / "trainer.safetensors").read_bytes()
