"""What a run reports: tags, figures on the console, and warnings: what lasts or jumps is said once."""

import io
import math
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_tools import PUZZLE, small_trainer

from hrm_host.progress import Stages, stages_on
from hrm_train.batches import open_source
from hrm_train.evaluate import held_out
from hrm_train.meter import Reading
from hrm_train.options import Intervals
from hrm_train.run import TrainingRun
from hrm_train.telemetry import (
    LASTING,
    THROTTLED,
    AnomalyMonitor,
    MetricsRow,
    TensorBoard,
    Writer,
    require_finite,
    require_wandb,
)

ROW = MetricsRow(
    time=0.0,
    step=20,
    samples=160,
    samples_per_s=80.4,
    step_ms=100.0,
    phase_ms={"data": 12.0, "forward": 50.0},
    train={
        "loss": 1.2345,
        "answer_loss": 1.0,
        "exact": 0.25,
        "cells": 0.5,
        "lr": 2.5e-4,
        "segments": 2.5,
        "revealed": 0.0,
        "max_segments": 4.0,
    },
    system={},
)


def small_run(data: Path, path: Path, steps: int, writers: list[Writer]) -> TrainingRun:
    trainer = small_trainer(data, total_samples=steps * 8)
    rows = held_out(open_source(data, "test", PUZZLE), 40, seed=0)
    return TrainingRun(path, trainer, rows, Intervals(), {}, writers, lambda _: None)


def test_tensorboard_gets_training_system_and_validation_figures(
    data: Path, tmp_path: Path
) -> None:
    small_run(data, tmp_path, 20, [TensorBoard(tmp_path)]).finish(Stages())
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/gradient_norm", "system/samples_per_s", "system/data_ms"} <= tags
    assert {f"train/{name}" for name in ("lr", "cells", "answer_loss", "exact", "segments")} <= tags
    assert {f"system/{name}" for name in ("step_p50_ms", "step_p99_ms", "cpu_cores")} <= tags
    assert 1 <= events.Scalars("train/segments")[-1].value <= 4
    assert events.Scalars("train/lr")[-1].value == pytest.approx(1e-3, rel=0.5)
    assert {"val/whole/exact_at_4", "val/whole/halting_at_4", "val/whole/segments"} <= tags
    assert events.Scalars("train/loss")[-1].step == 160


def test_the_summary_says_speed_loss_wait_and_load() -> None:
    assert ROW.summary() == (
        "80 samples/s, loss 1.234 (answers 1.000), exact 25 %, cells 50.0 %, lr 0.00025, data wait 12 %, "
        "2.5 of 4 segments"
    )
    with_gpu = MetricsRow(**{**vars(ROW), "system": {"gpu_utilisation_percent": 97.0}})
    assert with_gpu.summary().endswith("GPU 97 %")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_pipe_gets_a_line_of_the_first_figures_and_a_terminal_a_bar(
    data: Path, tmp_path: Path, is_terminal: bool
) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=200)
    with stages_on(console, first_line_s=0.0, line_every_s=60.0) as stages:
        small_run(data, tmp_path, 60, []).finish(stages)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("\x1b[" in shown) == is_terminal
    assert "samples/s, loss " in shown
    if not is_terminal:
        first, last = shown.splitlines()
        assert first.startswith("training: 160 of 480, ")
        assert last.startswith("training: 480 done in ")


def test_wandb_that_is_missing_names_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'hrm-edge\[wandb\]'"):
        require_wandb()


def reading(data_ms: float) -> Reading:
    return Reading(step_ms=100.0, samples_per_s=80.0, phase_ms={"data": data_ms, "forward": 60.0})


def test_waiting_for_rows_is_said_once_and_only_when_it_lasts() -> None:
    monitor = AnomalyMonitor()
    said = [monitor.see(reading(data_ms=16.0), ()) for _ in range(LASTING + 3)]
    assert [len(warnings) for warnings in said] == [0] * (LASTING - 1) + [1, 0, 0, 0]
    assert "16 % of each step" in said[LASTING - 1][0]


def test_a_moment_of_waiting_is_forgotten() -> None:
    monitor = AnomalyMonitor()
    waits = [20.0, 20.0, 1.0] * 5
    assert [monitor.see(reading(wait), ()) for wait in waits] == [[]] * 15


@pytest.mark.parametrize("reason", sorted(THROTTLED))
def test_each_way_of_throttling_has_its_remedy(reason: str) -> None:
    monitor = AnomalyMonitor()
    said = [warning for _ in range(9) for warning in monitor.see(reading(0.0), (reason,))]
    assert said == [THROTTLED[reason]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_ends_the_run(value: float) -> None:
    require_finite({"loss": [1.0]}, 7, "advice")
    with pytest.raises(FloatingPointError, match=f"gradient_norm is {value} at step 7.*advice"):
        require_finite({"loss": [1.0, 1.0, 1.0], "gradient_norm": [1.0, value, 1.0]}, 8, "advice")
