"""A run whose files are cut, empty or of another kind is not resumed, and one sentence says so."""

import json
import shutil
from pathlib import Path

import pytest
from train_tools import fresh, latest
from typer.testing import CliRunner

from hrm_train.cli import main as app

FILES = ("config.json", "meta.json", "model.safetensors", "trainer.json", "trainer.safetensors")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    trained = CliRunner().invoke(app, ["--run", str(run), *fresh(data, 2), "--checkpoint-steps", "1"])
    assert trained.exit_code == 0, trained.output
    return run


def refused(run: Path) -> str:
    told = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert isinstance(told.exception, SystemExit), told.exception
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1), told.stderr
    return told.stderr


@pytest.mark.parametrize("knows_hashes", [True, False], ids=["hashed", "of an older version"])
@pytest.mark.parametrize("content", ["cut", "empty", "[]", "null", '{"recipe": 3, "progress": [], "sha256": 3}'])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_refused(
    name: str, content: str, knows_hashes: bool, whole: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    saved = latest(run)
    assert saved is not None
    file = saved / name
    if not knows_hashes:
        meta = json.loads((saved / "meta.json").read_text())
        (saved / "meta.json").write_text(json.dumps({key: meta[key] for key in meta if key != "sha256"}))
    before = file.read_bytes()
    file.write_bytes({"cut": before[: len(before) // 2], "empty": b""}.get(content, content.encode()))
    assert str(saved.name) in refused(run)


@pytest.mark.parametrize("content", ["cut", "empty", "[]", '{"hardware": 3}', '{"hardware": {}, "model": {}}'])
def test_a_damaged_plan_is_refused(content: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = (run / "run.json").read_text()
    (run / "run.json").write_text({"cut": before[: len(before) // 2], "empty": ""}.get(content, content))
    assert "run.json" in refused(run)


@pytest.mark.parametrize("content", ["", "step_99\n", "\0", "../..\n"])
def test_a_pointer_to_no_checkpoint_is_refused(content: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "latest").write_text(content)
    refused(run)
