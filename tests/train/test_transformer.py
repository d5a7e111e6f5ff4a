"""The plain-transformer baseline uses the trainer, checkpoint, export and server of an HRM."""

from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.solve.solvers import from_bundle
from hrm_export.cli import main as app
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_train.batches import Feed, open_source
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe

PUZZLE = registry.get("sudoku-4x4")


def test_a_transformer_is_trained_exported_and_served(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = HRMConfig(
        arch="transformer",
        vocab_size=PUZZLE.vocab_size,
        seq_len=PUZZLE.seq_len,
        max_segments=1,
        hidden_size=32,
        num_heads=2,
        puzzle_vector_size=32,
        high_layers=1,
        low_layers=1,
    )
    model = HRM(config)
    recipe = Recipe(puzzle=PUZZLE.name, batch_size=16, lr=3e-3, warmup_samples=64)
    feed = Feed(open_source(data, "train", PUZZLE), PUZZLE, seed=0, augment=True)
    trainer = Trainer(model, feed, recipe, PRESETS["cpu"])
    losses = [float(trainer.step().loss) for _ in range(60)]
    at_first = np.mean(losses[:10])
    assert np.mean(losses[-10:]) < 0.9 * at_first
    assert trainer.slots.halted_B.all()
    trainer.save(tmp_path / "step_60", {"puzzle": PUZZLE.name, "step": 60})
    options = ["--out", str(tmp_path / "tiny.bundle"), "--held-out", "40"]
    ended = CliRunner().invoke(app, [str(tmp_path / "step_60"), *options])
    assert ended.exit_code == 0, ended.output
    bundle = Bundle.open(tmp_path / "tiny.bundle")
    solver = from_bundle(bundle, choose(bundle, "cpu"), num_threads=1)
    request = SolveRequest(puzzle="123434...14343.1")
    ((_, answer),) = solver.solve_all([request])
    assert isinstance(answer, SolveAnswer)
    assert answer.segments == 1
