"""A resume obeys its options, records every change, and rejects by name what cannot change."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_tools import invoked, succeeded
from train_tools import STEP_SAMPLES, fresh

from hrm_model import checkpoint
from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import fingerprint
from hrm_train.cli import main as app

resumed = partial(succeeded, app, "--resume", "--run")


def refused(run: Path, *options: str) -> str:
    ended = invoked(app, "--run", run, "--resume", *options)
    assert ended.exit_code == 2, ended.output
    return ended.output


def record_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def state_of(run: Path) -> dict[str, Any]:
    folder = checkpoint.resolve(run / "latest")
    return json.loads((folder / "trainer.json").read_text())


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    seldom = ["--keep", "5", "--checkpoint-steps", "2", "--validate-steps", "1000"]
    succeeded(app, "--run", run, *fresh(data, 4), *seldom)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def test_a_finished_run_goes_on_with_more_samples_another_rate_and_batch(run: Path):
    total = 4 * STEP_SAMPLES + 4 * 2 * STEP_SAMPLES
    changes = [f"total_samples={total}", "lr=5e-4", "batch_size=16"]
    settings = [text for change in changes for text in ("--set", change)]
    ended = resumed(run, *settings)
    assert "lr: 0.001 -> 0.0005" in ended.output
    assert state_of(run)["progress"]["samples"] == total
    assert state_of(run)["progress"]["step"] == 8
    assert state_of(run)["recipe"]["lr"] == 5e-4
    (event,) = record_of(run)["events"]
    assert event["samples"] == 4 * STEP_SAMPLES
    assert event["changes"]["batch_size"] == [8, 16]
    assert event["changes"]["total_samples"] == [4 * STEP_SAMPLES, total]
    assert "0.001 -> 0.0005" in invoked(app, "status", run).output
    before = record_of(run)
    resumed(run)
    assert record_of(run) == before


def test_a_resume_keeps_the_intervals_of_the_run_unless_they_are_given(run: Path):
    assert record_of(run)["intervals"]["checkpoint_steps"] == 2
    total = f"total_samples={7 * STEP_SAMPLES}"
    resumed(run, "--set", total, "--checkpoint-steps", "3")
    steps = {path.name for path in run.glob("step_*")}
    assert steps == {"step_2", "step_4", "step_6", "step_7"}
    assert record_of(run)["intervals"]["checkpoint_steps"] == 3
    assert record_of(run)["intervals"]["keep"] == 5
    assert record_of(run)["events"][0]["changes"]["checkpoint_steps"] == [2, 3]


def test_the_options_of_the_start_may_be_repeated(run: Path, data: Path):
    before = record_of(run)
    resumed(run, *fresh(data, 4))
    assert record_of(run) == before


def test_moved_data_are_found_by_option_and_other_data_need_a_word(
    run: Path, data: Path, tmp_path: Path
):
    other = shutil.copytree(data, tmp_path / "other")
    (other / "train" / ".DS_Store").touch()
    (run / "run.json").write_text(json.dumps(record_of(run) | {"data": str(tmp_path / "absent")}))
    total = f"total_samples={5 * STEP_SAMPLES}"
    resumed(run, "--data", str(other), "--set", total)
    assert record_of(run)["data"] == str(other)
    rows = other / "train" / "all__inputs.npy"
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    options = ["--data", str(other), "--set", f"total_samples={6 * STEP_SAMPLES}"]
    before = record_of(run)
    assert "--data-changed" in refused(run, *options)
    assert record_of(run) == before
    resumed(run, *options, "--data-changed")
    fingerprints = record_of(run)["events"][-1]["changes"]["data_fingerprint"]
    assert fingerprints == [fingerprint(data), fingerprint(other)]


def bytes_of(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


REFUSED = [
    "--data=absent",
    "--set=threads=100000",
    "--set=threads=-1",
    "--set=workers=1e9",
    "--set=prefetch=-2",
    "--set=micro_batch=-4",
    "--set=lr=nan",
    "--set=lr=-1",
    "--set=lr=inf",
    "--set=beta2=1",
    "--set=explore=2",
    "--set=warmup_samples=-1",
    "--set=batch_size=0",
    "--set=total_samples=0",
    "--set=total_samples=inf",
    "--set=seed=1e400",
    "--set=batch_size=1e12",
    "--set=window=nan",
    "--set=loss=hinge",
    "--set=precision=fp8",
    "--set=compile=maybe",
    "--set=nothing=1",
    "--set=halt_rule=q_continue",
    "--threads=100000",
    "--hw=abacus",
    "--checkpoint-steps=0",
]


FIXED = {
    "--set=hidden_size=64": "hidden_size",
    "--set=optimizer=adamw": "optimizer",
    "--set=seed=1": "seed",
    "--arch=trm": "arch",
    "--puzzle=sudoku-6x6": "puzzle",
    "--init=elsewhere": "--init",
}
"""What cannot change, by the option that would change it."""


def test_a_refused_resume_changes_no_byte(run: Path):
    before = bytes_of(run)
    for option in (*REFUSED, *FIXED):
        said = refused(run, "--set=lr=5e-4", option)
        assert bytes_of(run) == before, option
        assert FIXED.get(option, "") in said
        assert ("start another --run" in said) == (option in FIXED)


@pytest.mark.parametrize("missing", ["train", "test"])
def test_a_resume_onto_data_that_lack_a_split_changes_no_byte(
    missing: str, run: Path, data: Path, tmp_path: Path
):
    torn = shutil.copytree(data, tmp_path / "torn")
    before = bytes_of(run)
    shutil.rmtree(torn / missing)
    refused(run, "--data", str(torn), "--data-changed")
    assert bytes_of(run) == before


def test_a_resume_that_exceeds_the_memory_changes_no_byte(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("nothing is left")

    before = bytes_of(run)
    monkeypatch.setattr(HRM, "think", no_memory)
    said = refused(run, "--set=batch_size=512", "--set=total_samples=99999")
    assert "one row of this model exceeds the memory" in said
    assert bytes_of(run) == before


def test_a_run_is_resumed_from_any_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(data.parent)
    run = tmp_path / "run"
    succeeded(app, "--run", run, *fresh(Path(data.name), 1))
    assert record_of(run)["data"] == data.name
    monkeypatch.chdir(tmp_path)
    resumed(run, "--set", f"total_samples={2 * STEP_SAMPLES}")
    assert set(record_of(run)["events"][0]["changes"]) == {"total_samples"}
