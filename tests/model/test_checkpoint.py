"""Checkpoints: whole or absent, without pickle, refused where the parts do not belong together."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from files import ROOT, edited

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_export.torch_engine import record
from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.geometry import on_board
from hrm_puzzles.data.sources import Questions

SIZES = HRMConfig(
    vocab_size=6, seq_len=16, hidden_size=16, num_heads=2, puzzle_vector_size=16, max_segments=4
)
IN_REPOSITORY = sorted((ROOT / "model" / "checkpoints").iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "step_1", model_of(SIZES), {"puzzle": "sudoku-4x4", "step": 1})
    return tmp_path / "step_1"


@pytest.mark.parametrize("path", IN_REPOSITORY, ids=lambda path: path.name)
def test_the_weights_in_the_repository_compute_the_traces_of_their_bundles(path: Path):
    most_mib = 4 if path.name == "sudoku-hrm" else 1
    assert (path / checkpoint.WEIGHTS).stat().st_size <= most_mib << 20
    model, meta = checkpoint.load(path)
    bundle = Bundle.open(SHIPPED_BUNDLES / f"{path.name}.bundle")
    if meta["puzzle"] != bundle.puzzle.name:
        model = on_board(model, bundle.puzzle)
    golden = bundle.golden()
    questions = Questions(
        tokens_NT=golden.tokens_BT,
        labels_NT=golden.tokens_BT,
        puzzle_ids_N=golden.puzzle_ids_B,
        source="the bundle",
    )
    found = record(model, questions, num_segments=1)
    expected_BTV = golden.logits_SBTV[0]
    assert np.abs(found.logits_SBTV[0] - expected_BTV).max() < 1e-3
    assert expected_BTV.std() > 1


def test_a_run_means_its_best_checkpoint_or_else_its_latest(saved: Path):
    run = saved.parent
    with pytest.raises(CheckpointError, match="is not a checkpoint directory"):
        checkpoint.load_config(run)
    for pointer, step in (("latest", 1), ("best", 2)):
        checkpoint.save(run / f"step_{step}", model_of(SIZES), {"step": step})
        checkpoint.point(run / pointer, run / f"step_{step}")
        assert checkpoint.resolve(run).name == f"step_{step}"
    assert checkpoint.load_config(run) == SIZES


def test_a_flipped_bit_is_refused_and_the_latest_whole_checkpoint_is_named(saved: Path):
    for step in (2, 10):
        checkpoint.save(saved.parent / f"step_{step}", model_of(SIZES), {"step": step})
    weights = saved.parent / "step_10" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"is missing or has changed since it was written; .*step_2 is whole"
    ):
        checkpoint.load(weights.parent)
    assert checkpoint.load(saved.parent / "step_2")[1]["step"] == 2


ANOTHER_SIZE = HRMConfig(vocab_size=7, seq_len=16, hidden_size=16, num_heads=2)
DAMAGE = [
    ("config.json", '{"vocab_size": 6, "seq_len": 16, "layers": 2}', "unknown keys"),
    ("config.json", '{"vocab_size": 6, "seq_len": 16, "hidden_size": 18}', "twice num_heads"),
    ("config.json", ANOTHER_SIZE.to_json(), "does not fit"),
    ("model.safetensors", "not tensors", "cannot be read"),
    ("meta.json", "", "cannot be read"),
]


@pytest.mark.parametrize(("file", "content", "sentence"), DAMAGE)
def test_damage_is_one_sentence(saved: Path, file: str, content: str, sentence: str):
    """In a checkpoint from before there were hashes."""
    with edited(saved / "meta.json") as meta:
        del meta["sha256"]
    (saved / file).write_text(content)
    with pytest.raises(CheckpointError, match=sentence) as rejection:
        checkpoint.load(saved)
    assert "\n" not in str(rejection.value)


OUT_OF_BOUNDS = [
    {"hidden_size": 10**9},
    {"hidden_size": 1 << 17, "num_heads": 2},
    {"seq_len": "16"},
    {"expansion": 1e300},
    {"rms_norm_eps": float("nan")},
]


@pytest.mark.parametrize("changes", OUT_OF_BOUNDS, ids=str)
def test_numbers_are_bounded_before_allocation(saved: Path, changes: dict[str, Any]):
    (saved / "config.json").write_text(json.dumps({**asdict(SIZES), **changes}))
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        checkpoint.load_config(saved)
