"""A run reports its first step at once, and corrects its forecast by the measured speed."""

import re
import time
from pathlib import Path

import pytest
from train_tools import PUZZLE, fresh, small_trainer
from typer.testing import CliRunner

from hrm_host.progress import Stages
from hrm_train.batches import open_source
from hrm_train.cli import main as app
from hrm_train.evaluate import Evaluation, HeldOut, held_out
from hrm_train.loop import StepReport, Trainer
from hrm_train.opening import Opening
from hrm_train.options import Intervals
from hrm_train.run import TrainingRun
from hrm_train.status import History

SPEED = re.compile(r"measured: ([\d,.]+(?:e\+\d+)?) samples/s; ([\d,]+) samples to go take about")


def sentences_of(trainer: Trainer, data: Path, path: Path) -> list[str]:
    """What a run of this trainer says."""
    said: list[str] = []
    rows = held_out(open_source(data, "test", PUZZLE), 8, seed=0)
    run = TrainingRun(path, trainer, rows, Intervals(), {}, [], said.append)
    run.finish(Stages())
    return said


def slowed(trainer: Trainer, seconds: float) -> Trainer:
    plain_step = trainer.step

    def step() -> StepReport:
        time.sleep(seconds)
        return plain_step()

    trainer.step = step
    return trainer


def test_a_run_reports_its_first_step_and_then_the_measured_time(
    data: Path, tmp_path: Path
) -> None:
    trainer = small_trainer(data, total_samples=60 * 8)
    first, speed, *_ = sentences_of(trainer, data, tmp_path)
    assert re.fullmatch(r"first step: \d+\.\d s", first)
    found = SPEED.match(speed)
    assert found is not None, speed
    assert found[2] == "320"  # the report of step 20


def test_slow_steps_are_announced_and_measured_before_the_usual_report(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opening, "slow_s", 0.01)
    monkeypatch.setattr(Opening, "speed_s", 0.1)
    trainer = slowed(small_trainer(data, total_samples=6 * 8), 0.2)
    slow, first, speed, *_ = sentences_of(trainer, data, tmp_path)
    assert slow.startswith("the first step still runs after")
    assert first.startswith("first step: ")
    found = SPEED.match(speed)
    assert found is not None, speed
    assert float(found[1]) <= 8 / 0.2
    assert found[2] == "32"  # after the second step


def test_a_dry_run_names_its_basis_and_takes_the_speed_of_a_run_like_it(
    data: Path, tmp_path: Path
) -> None:
    run = [f"--run={tmp_path / 'run'}"]
    before = CliRunner().invoke(app, [*run, *fresh(data, 40), "--dry-run"])
    assert "speed: assumed" in before.output
    assert "at 3,000 samples/s" in before.output
    ended = CliRunner().invoke(app, [*run, *fresh(data, 40)])
    assert ended.exit_code == 0, ended.output
    after = CliRunner().invoke(app, [*run, *fresh(data, 4000), "--dry-run"])
    assert f"speed: measured by {tmp_path / 'run'}" in after.output
    assert after.output.count("samples/s: ") == 1
    other = CliRunner().invoke(app, [*run, *fresh(data, 40), "--set=batch_size=4", "--dry-run"])
    assert "speed: assumed" in other.output


def test_a_short_run_draws_ten_validations_and_prints_each_step_once(
    data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = CliRunner().invoke(app, [f"--run={run}", *fresh(data, 43)])
    assert ended.exit_code == 0, ended.output
    steps = [row["step"] for row in History(run).rows()]
    assert len(set(steps)) >= 10
    printed = re.findall(r"^step (\d+): ", ended.output, re.MULTILINE)
    assert [int(step) for step in printed] == sorted(set(steps))
    assert ended.output.count("% after 1/4 segments") == len(printed)
    assert "finished at step 43; checkpoint" in ended.output


def test_a_step_with_two_validations_is_printed_once(data: Path, tmp_path: Path) -> None:
    source = open_source(data, "test", PUZZLE)
    whole = held_out(source, 40, seed=0).whole
    rows = HeldOut(whole=whole, fast=whole.rows(slice(8)))
    said: list[str] = []
    trainer = small_trainer(data, total_samples=2 * 8)
    TrainingRun(tmp_path, trainer, rows, Intervals(validate_steps=1), {}, [], said.append).finish(
        Stages()
    )
    assert {row["kind"] for row in History(tmp_path).rows()} == {"fast", "whole"}
    printed = [line.partition(":")[0] for line in said if line.startswith("step ")]
    assert printed == ["step 1", "step 2"]


@pytest.mark.parametrize(
    ("segments", "halting"),
    [(4.0, "never halts by itself within 4 segments"), (2.5, "halts by itself after 2.5 segments")],
)
def test_running_to_the_limit_is_not_halting(segments: float, halting: str) -> None:
    curve = (0.1, 0.2, 0.3, 0.4)
    evaluation = Evaluation(
        num_puzzles=40,
        proof_exists=False,
        exact=curve,
        proven=curve,
        accuracy=curve,
        cells=curve,
        halting=curve,
        segments=segments,
        halted_exact=0.4,
        loss=1.0,
        pass_at={},
    )
    assert f"; {halting}, 40.0 % exact" in evaluation.summary()
