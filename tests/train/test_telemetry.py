"""What a run tells: tags, the console, and the silence of machines that have nothing to say."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_tools import PUZZLE, small_trainer

from hrm_train import nvml
from hrm_train.dataset import open_source
from hrm_train.display import Lines, display_for, line
from hrm_train.run import Intervals, Run
from hrm_train.telemetry import Moment, TensorBoard, require_wandb
from hrm_train.validation import held_out

MOMENT = Moment(
    time=0.0,
    step=20,
    samples=160,
    samples_per_s=80.4,
    step_ms=100.0,
    phase_ms={"data": 12.0, "forward": 50.0},
    train={"loss": 1.2345, "exact": 0.25, "revealed": 0.0, "max_segments": 4.0},
    system={},
)


def test_tensorboard_gets_training_system_and_validation_figures(data: Path, tmp_path: Path) -> None:
    trainer = small_trainer(data, total_samples=20 * 8)
    rows = held_out(open_source(data, "test", PUZZLE), 40, seed=0)
    run = Run(tmp_path, trainer, rows, Intervals(), {}, [TensorBoard(tmp_path)], lambda _: None)
    run.finish(Lines(Console(file=io.StringIO()), 160))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/gradient_norm", "system/samples_per_s", "system/data_ms"} <= tags
    assert {"val/whole/exact_at_4", "val/whole/halting_at_4", "val/whole/segments"} <= tags
    assert events.Scalars("train/loss")[-1].step == 160


def test_one_line_says_speed_loss_wait_and_load() -> None:
    assert line(MOMENT) == "80 samples/s, loss 1.234, exact 25 %, data wait 12 %, at most 4 segments"
    with_gpu = Moment(**{**vars(MOMENT), "system": {"gpu_utilisation_percent": 97.0}})
    assert line(with_gpu).endswith("GPU 97 %")


def test_a_pipe_gets_a_first_line_and_then_one_a_minute() -> None:
    stream = io.StringIO()
    display = display_for(Console(file=stream), total=480, done=0)
    with display:
        for _ in range(5):
            display.show(MOMENT)
    assert stream.getvalue() == f"160 of 480 samples, {line(MOMENT)}\n"


def test_a_terminal_gets_a_bar() -> None:
    stream = io.StringIO()
    with display_for(Console(file=stream, force_terminal=True, width=120), total=480, done=0) as display:
        display.advance(240)
        display.show(MOMENT)
    assert "50.0 %" in stream.getvalue()
    assert "80 samples/s" in stream.getvalue()


def test_wandb_that_is_missing_names_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'hrm-edge\[wandb\]'"):
        require_wandb()


def test_a_cpu_has_no_gpu_figures_and_says_nothing_of_it() -> None:
    said: list[str] = []
    assert nvml.open_gpu(torch.device("cpu"), said.append) is None
    assert nvml.memory(torch.device("cpu")) == {}
    assert said == []


def test_a_gpu_without_the_library_says_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    said: list[str] = []
    assert nvml.open_gpu(torch.device("cuda"), said.append) is None
    assert [sentence.count("pip install nvidia-ml-py") for sentence in said] == [1]


def test_what_a_card_does_not_answer_is_left_out() -> None:
    class NoAnswer(Exception):  # noqa: N818
        """As nvidia-ml-py raises for what a laptop's card does not support."""

    def refuse(*_: object) -> float:
        raise NoAnswer

    library = SimpleNamespace(
        NVMLError=NoAnswer,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=93),
        nvmlDeviceGetTemperature=lambda *_: 71,
        nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetClockInfo=lambda _, clock: 1000 * clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x20,
    )
    sample = nvml.Gpu(library, None).sample()
    assert sample.throttled == ("thermal",)
    assert sample.scalars() == {
        "gpu_utilisation_percent": 93.0,
        "gpu_temperature_c": 71.0,
        "gpu_sm_clock_mhz": 1000.0,
        "gpu_memory_clock_mhz": 2000.0,
        "gpu_throttled": 1.0,
    }
