"""The trainer on the small real thing: 4x4 Sudoku, a model of a few thousand weights."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cli_tools import invoked, rejected
from train_tools import PUZZLE, losses, small_trainer

from hrm_puzzles.data.datasets import open_split
from hrm_train import session
from hrm_train.batches import Feed
from hrm_train.cli import main as app
from hrm_train.evaluate import evaluate, held_out
from hrm_train.hardware import PRESETS, Hardware
from hrm_train.options import PlanOptions
from hrm_train.recipe import Recipe, config_for

EXACT = dataclasses.replace(PRESETS["rtx4090"], precision="fp32", compile=False)


@pytest.mark.gpu
@pytest.mark.parametrize(("hardware", "gap"), [(EXACT, 1e-3), (PRESETS["rtx4090"], 0.05)])
def test_a_gpu_trains_as_the_cpu_does(data: Path, hardware: Hardware, gap: float):
    expected = losses(small_trainer(data, window=2), 5)
    assert losses(small_trainer(data, hardware, window=2), 5) == pytest.approx(expected, rel=gap)


LENGTH = "is not of type int; give a value such as"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set=learning=1"], "unknown setting 'learning'"),
        (["--set=lr=fast"], "is not of type float"),
        (["--set=total_samples=-1 passes"], f"total_samples='-1 passes' {LENGTH}"),
        (["--set=total_samples=2 epochs"], LENGTH),
        (["--set=total_samples=nan"], LENGTH),
        (["--set=batch_size=3.5"], LENGTH),
        (["--set=total_samples=1e400"], LENGTH),
        (["--hw=abacus"], "--hw 'abacus' is unknown"),
        (["--puzzle=sudoku"], "choose another data set or puzzle"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    data: Path, tmp_path: Path, options: list[str], sentence: str
):
    run = tmp_path / "run"
    arguments = ["--run", run, "--data", data, "--puzzle", "sudoku-4x4", *options]
    assert sentence in rejected(app, *arguments)
    assert not run.exists()


def test_training_learns_to_solve(data: Path):
    config = dataclasses.replace(config_for("relational", PUZZLE, 1), max_segments=4)
    trainer = small_trainer(data, config=config, lr=3e-3, halt_weight=0.05, average_decay=0.98)
    for _ in range(200):
        trainer.step()
    rows = held_out(open_split(data, "test", PUZZLE), 40, seed=0).whole
    result = evaluate(trainer.averaged_model(), PUZZLE, rows)
    assert result.proven[-1] >= 0.8  # an untrained model: none
    assert result.exact[-1] <= result.proven[-1]


def test_an_epoch_visits_every_group_once(data: Path):
    source = open_split(data, "train", PUZZLE)
    feed = Feed(source, seed=0, augment=False)
    num_steps = 2 * source.num_groups // 40
    rows = [feed.draw(step, range(40), 40).tokens_BT for step in range(num_steps)]
    every = source.rows(np.arange(len(source))).tokens_BT
    for epoch in np.split(np.concatenate(rows), 2):
        assert np.array_equal(np.unique(epoch, axis=0), np.unique(every, axis=0))


def test_threads_that_draw_ahead_change_nothing(data: Path):
    ahead = dataclasses.replace(PRESETS["cpu"], workers=3, prefetch=5)
    expected = losses(small_trainer(data), 40)
    assert losses(small_trainer(data, ahead), 40) == expected


def test_puzzles_may_run_longer_until_the_deepening_ends(data: Path):
    recipe = Recipe(window=4, deepening_samples=1000)
    expected = {0: 4, 499: 4, 500: 8, 999: 8, 1000: 10, 5000: 10}
    for samples, limit in expected.items():
        assert recipe.segments_at(samples, 10) == limit
    assert Recipe(window=4).segments_at(0, 10) == 10
    trainer = small_trainer(data, deepening_samples=10**9, window=1, explore=1.0)
    for _ in range(5):
        trainer.step()
        assert trainer.slots.halted_B.all()


class ReachedError(Exception):
    """Planning began."""


def test_alone_on_a_cpu_it_names_size_and_recipes_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sentence = rejected(app, "--hw", "cpu")
    assert "all of ARC (up to 5.9 GiB)" in sentence
    for name in session.FOR_A_CPU:
        assert name in sentence
        assert PlanOptions(recipe=name).examples  # a recipe with its own data
    assert "or --yes" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--yes", "--puzzle=arc", "arc-1", "--data=mine"])
def test_whoever_names_it_is_not_stopped(option: str, monkeypatch: pytest.MonkeyPatch):
    def reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr(session, "plan_of", reached)
    done = invoked(app, "--hw=cpu", option)
    assert isinstance(done.exception, ReachedError)
