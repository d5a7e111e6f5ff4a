"""A run on disk is whole however its process ends, and a resume gives the same weights."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
from train_tools import PUZZLE, fresh, latest, small_trainer, training_run, weights_of

from hrm_host.progress import Stages
from hrm_model import checkpoint
from hrm_puzzles.data.datasets import open_split
from hrm_train.evaluate import LEAST_FAST, HeldOut, held_out
from hrm_train.loop import StepReport, Trainer
from hrm_train.status import METRICS, read_lines, validations

SAMPLES_PER_STEP = 8
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["hrm_train.session", "torch._dynamo", "torch.utils.tensorboard"])


def train(run: Path, *options: str, largest_file: int | None = None) -> ForkServerProcess:
    arguments = ["--run", str(run), *options]
    log = run.with_suffix(".log")
    process = FORK.Process(target=_hrm_train, args=(arguments, log, largest_file))
    process.start()
    return process


def said(run: Path) -> str:
    """Return the output of `train` on one line."""
    log = run.with_suffix(".log")
    if not log.exists():
        return ""
    return " ".join(log.read_text().split())


def _hrm_train(arguments: list[str], log: Path, largest_file: int | None) -> None:
    """Run the command as a shell starts it: its own standard error, its own exit code."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    from hrm_train.cli import main

    sys.argv = ["hrm-train", *arguments]
    main()


def acting_at(trainer: Trainer, samples: int, action: Callable[[], object]) -> None:
    plain_step = trainer.step

    def step() -> StepReport:
        report = plain_step()
        if trainer.progress.samples == samples:
            action()
        return report

    trainer.step = step


def wait_for_checkpoint(run: Path, process: ForkServerProcess, after: Path | None = None) -> None:
    while latest(run) == after:
        assert process.is_alive(), said(run)
        time.sleep(0.005)


@pytest.mark.process
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_training_ends_with_the_same_weights(kills: int, data: Path, tmp_path: Path):
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    moments = random.Random(5)
    often = ["--checkpoint-steps", "1", "--validate-steps", str(kills)]
    options = fresh(data, 3 * kills)
    expected = train(whole, *options, *often)
    for number in range(kills):
        before = latest(killed)
        process = train(killed, *options, *often)
        if number % 2 == 0:  # the others die at any moment, perhaps at their start
            wait_for_checkpoint(killed, process, after=before)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        options = ["--resume"]
    last = train(killed, "--resume", *often)
    for process in (expected, last):
        process.join(120)
        assert process.exitcode == 0, said(killed)
    assert weights_of(killed) == weights_of(whole)
    assert (killed / "best").read_text() == (whole / "best").read_text()
    assert list(killed.glob(".*")) == []
    assert scores_of(killed) == scores_of(whole)


def scores_of(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["score"]) for row in validations(run)]


@pytest.mark.process
def test_a_run_has_one_writer_and_stays_whole(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    first = train(run, *fresh(data, 100_000), "--checkpoint-steps", "1")
    wait_for_checkpoint(run, first)
    second = train(run, "--resume")
    second.join(60)
    assert second.exitcode == 2
    assert f"is being written by another process (process {first.pid})" in said(run)
    first.terminate()
    first.join(60)
    assert first.exitcode == 1
    assert "stopped by SIGTERM" in said(run)
    kept = latest(run)
    checkpoint.load(kept)
    cramped = train(run, "--resume", "--checkpoint-steps", "3", largest_file=100_000)
    cramped.join(60)
    assert cramped.exitcode == 3
    assert "File too large" in said(run)
    assert f"{kept.name} before it is whole; make room there" in said(run)
    assert "Traceback" not in said(run)
    assert latest(run) == kept
    assert list(run.glob(".*")) == []
    checkpoint.load(kept)


def test_nothing_is_saved_after_a_value_that_is_no_number(data: Path, tmp_path: Path):
    trainer = small_trainer(data, total_samples=50 * SAMPLES_PER_STEP)
    weights = next(trainer.model.parameters())
    acting_at(trainer, 8 * SAMPLES_PER_STEP, lambda: weights.data.fill_(float("nan")))
    run = training_run(tmp_path / "run", trainer, checkpoint_steps=3)
    sentence = r"loss is nan at step 9.*--init and an lr below 0\.001"
    with pytest.raises(FloatingPointError, match=sentence):
        run.finish(Stages())
    assert latest(run.path) == run.path / "step_6"
    for line in read_lines(run.path / METRICS):
        assert np.isfinite(line["train"]["loss"])


def test_a_signal_defers_a_validation_to_the_resume(data: Path, tmp_path: Path):
    total = 20 * SAMPLES_PER_STEP
    trainer = small_trainer(data, total_samples=total)
    acting_at(trainer, 10 * SAMPLES_PER_STEP, lambda: os.kill(os.getpid(), signal.SIGTERM))
    first = training_run(tmp_path / "run", trainer, validate_steps=10)
    first.finish(Stages())
    assert (first.stopped_by, validations(first.path)) == ("SIGTERM", [])
    resumed = small_trainer(data, total_samples=total)
    resumed.restore(first.path / "step_10")
    second = training_run(first.path, resumed, validate_steps=10)
    second.finish(Stages())
    assert [row["step"] for row in validations(second.path)] == [10, 20]


def test_when_all_puzzles_are_validated(data: Path, tmp_path: Path):
    whole = held_out(open_split(data, "test", PUZZLE), 40, seed=0).whole
    held = HeldOut(whole=whole, fast=whole.rows(slice(10)))
    trainer = small_trainer(data, total_samples=35 * SAMPLES_PER_STEP)
    intervals = {"validate_steps": 7, "validate_whole_steps": 14}
    run = training_run(tmp_path / "run", trainer, held=held, **intervals)
    run.finish(Stages())
    history = validations(run.path)
    evaluated = {row["step"] for row in history if row["kind"] == "whole"}
    expected = set()
    best = (-1.0, 0.0)
    for row in history:
        if row["kind"] == "whole":
            continue
        is_due = row["step"] in (14, 28, 35)
        worth = (row["score"], -row["loss"])
        if worth > best or is_due:
            expected.add(row["step"])
        best = max(best, worth)
    assert evaluated == expected
    assert {7, 14, 28, 35} <= expected
    assert history[-1]["num_puzzles"] == 40


def test_the_last_few_checkpoints_and_the_best_stay(data: Path, tmp_path: Path):
    trainer = small_trainer(data, total_samples=20 * SAMPLES_PER_STEP)
    intervals = {"validate_steps": 5, "checkpoint_steps": 2, "keep": 3}
    run = training_run(tmp_path / "run", trainer, **intervals)
    run.finish(Stages())
    meta = json.loads((run.path / "step_20" / "meta.json").read_text())
    best = f"step_{meta['best_step']}"
    kept = {path.name for path in run.path.glob("step_*")}
    assert kept == {best, "step_16", "step_18", "step_20"}
    assert checkpoint.resolve(run.path / "best").name == best
    best_row = max(validations(run.path, "whole"), key=lambda row: (row["score"], -row["loss"]))
    assert meta["best_step"] == best_row["step"]
    assert meta["best_epoch"] == pytest.approx(best_row["samples"] / 200)
    assert meta["best_loss"] == min(row["loss"] for row in validations(run.path))
    assert {"time", "step", "samples"} <= set(meta)
    assert {"best_score", "best_loss_step"} <= set(meta)


def test_what_a_run_reports_and_saves_changes_nothing_in_it(data: Path, tmp_path: Path):
    total = 12 * SAMPLES_PER_STEP
    for path, steps in ((tmp_path / "often", 4), (tmp_path / "seldom", 100)):
        trainer = small_trainer(data, total_samples=total)
        often = {"validate_steps": steps, "checkpoint_steps": steps, "log_steps": steps}
        training_run(path, trainer, **often).finish(Stages())
    assert weights_of(tmp_path / "often") == weights_of(tmp_path / "seldom")


def test_the_tenth_is_fixed_by_the_seed_and_part_of_the_whole(data: Path):
    source = open_split(data, "train", PUZZLE)
    held = held_out(source, 10_000, seed=1)
    again = held_out(source, 10_000, seed=1).fast
    assert np.array_equal(held.fast.tokens_BT, again.tokens_BT)
    assert (len(held.fast.tokens_BT), len(held.whole.tokens_BT)) == (LEAST_FAST, len(source))
    whole = {row.tobytes() for row in held.whole.tokens_BT}
    assert {row.tobytes() for row in held.fast.tokens_BT} <= whole
    assert held_out(open_split(data, "test", PUZZLE), 10_000, seed=1).fast is None
