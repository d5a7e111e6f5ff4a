"""What a run reports: tags, figures on the console, and warnings that come once."""

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
    TensorBoard,
    Writer,
    require_finite,
    require_wandb,
)

TAGS = [
    "train/loss",
    "train/gradient_norm",
    "train/lr",
    "train/exact",
    "system/samples_per_s",
    "system/step_p99_ms",
    "system/cpu_cores",
    "val/whole/exact_at_4",
    "val/whole/halting_at_4",
]


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
    assert set(TAGS) <= set(events.Tags()["scalars"])
    assert 1 <= events.Scalars("train/segments")[-1].value <= 4
    assert events.Scalars("train/lr")[-1].value == pytest.approx(1e-3, rel=0.5)
    assert events.Scalars("train/loss")[-1].step == 160


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
        assert first.startswith("training: 8 of 480, ")
        assert last.startswith("training: 480 done in ")


def test_wandb_that_is_missing_names_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'hrm-edge\[wandb\]'"):
        require_wandb()


def reading(data_ms: float) -> Reading:
    return Reading(step_ms=100.0, samples_per_s=80.0, phase_ms={"data": data_ms, "forward": 60.0})


def test_waiting_for_rows_is_said_once_and_only_when_it_lasts() -> None:
    monitor = AnomalyMonitor()
    warnings = [monitor.see(reading(data_ms=16.0), ()) for _ in range(LASTING + 3)]
    (warning,) = warnings.pop(LASTING - 1)
    assert "16 % of each step" in warning
    assert warnings == [[]] * (LASTING + 2)


def test_a_moment_of_waiting_is_forgotten() -> None:
    monitor = AnomalyMonitor()
    waits = [20.0, 20.0, 1.0] * 5
    assert [monitor.see(reading(wait), ()) for wait in waits] == [[]] * 15


@pytest.mark.parametrize("reason", sorted(THROTTLED))
def test_each_way_of_throttling_has_its_remedy(reason: str) -> None:
    monitor = AnomalyMonitor()
    warnings: list[str] = []
    for _ in range(9):
        warnings += monitor.see(reading(0.0), (reason,))
    assert warnings == [THROTTLED[reason]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_ends_the_run(value: float) -> None:
    require_finite({"loss": [1.0]}, 7, "advice")
    with pytest.raises(FloatingPointError, match=f"gradient_norm is {value} at step 7.*advice"):
        require_finite({"loss": [1.0, 1.0, 1.0], "gradient_norm": [1.0, value, 1.0]}, 8, "advice")
