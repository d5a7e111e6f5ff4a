"""Checkpoints: whole or absent, without pickle, refused where the parts do not belong together."""

import json
from pathlib import Path

import pytest
import torch

from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM

SIZES = HRMConfig(vocab_size=6, seq_len=16, hidden_size=16, num_heads=2, puzzle_vector_size=16, max_segments=4)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "step_1", HRM(SIZES), {"puzzle": "sudoku-4x4", "step": 1})
    return tmp_path / "step_1"


def test_what_is_saved_is_loaded(saved: Path) -> None:
    model, meta = checkpoint.load(saved)
    torch.manual_seed(0)
    original = HRM(SIZES).state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in model.state_dict().items())
    assert meta["config_digest"] == SIZES.digest


def test_a_failed_write_leaves_the_older_checkpoint_and_nothing_else(saved: Path) -> None:
    def fail(_: Path) -> None:
        raise OSError("No space left on device")

    before = (saved / "meta.json").read_text()
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(saved, HRM(SIZES), {"step": 2}, write_more=fail)
    assert (saved / "meta.json").read_text() == before
    assert [path.name for path in saved.parent.iterdir()] == ["step_1"]


def test_a_pointer_names_the_checkpoint_beside_it(saved: Path) -> None:
    checkpoint.point(saved.parent / "best", saved)
    assert checkpoint.resolve(saved.parent / "best") == saved
    assert checkpoint.resolve(saved) == saved


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", json.dumps({"vocab_size": 6, "seq_len": 16, "layers": 2}), "unknown keys"),
        ("config.json", "{", "cannot be read"),
        ("config.json", json.dumps({"vocab_size": 6, "seq_len": 16, "hidden_size": 18}), "multiple of twice num_heads"),
        ("config.json", HRMConfig(vocab_size=7, seq_len=16, hidden_size=16, num_heads=2).to_json(), "does not fit"),
        ("model.safetensors", "not tensors", "cannot be read"),
        ("meta.json", None, "cannot be read"),
    ],
)
def test_damage_is_refused_in_one_sentence(saved: Path, file: str, content: str | None, sentence: str) -> None:
    (saved / file).unlink()
    if content is not None:
        (saved / file).write_text(content)
    with pytest.raises(CheckpointError, match=sentence) as refusal:
        checkpoint.load(saved)
    assert "\n" not in str(refusal.value)


def test_the_weights_in_the_repository_open() -> None:
    model, meta = checkpoint.load(Path(__file__).parents[2] / "model" / "checkpoints" / "sudoku")
    assert meta["puzzle"] == "sudoku"
    assert model.config.seq_len == 81
