"""What a run measures and reports: phases, tags, figures, one-time warnings, and its speed."""

import gzip
import json
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_tools import ran, succeeded
from service_tools import PATIENCE_S
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_tools import fresh, small_trainer, training_run

from hrm_host.progress import Stages
from hrm_train import meter, run, telemetry
from hrm_train.cli import main as app
from hrm_train.evaluate import HEADER
from hrm_train.loop import StepReport
from hrm_train.meter import TABLE, TRACE, PhaseTimer, profile_steps
from hrm_train.run import TrainingRun
from hrm_train.status import validations

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


def small_run(
    data: Path, path: Path, steps: int, writers: Sequence[telemetry.Writer] = ()
) -> TrainingRun:
    return training_run(path, small_trainer(data, total_samples=steps * 8), writers)


def test_a_slow_first_step_is_announced_again_and_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "SLOW_STEP_S", 0.05)
    training = small_run(data, tmp_path, 2)
    slow = []
    slow_before = []  # each step
    is_slow = threading.Event()

    def listen(line: str) -> None:
        if line.startswith("the first step still runs after"):
            slow.append(line)
            if len(slow) == 2:
                is_slow.set()

    monkeypatch.setattr(run, "say", listen)
    plain_step = training.trainer.step

    def slow_step() -> StepReport:
        slow_before.append(len(slow))
        assert is_slow.wait(PATIENCE_S)
        return plain_step()

    training.trainer.step = slow_step
    training.finish(Stages())
    assert slow_before == [0, len(slow)]


def test_tensorboard_gets_all_figures(data: Path, tmp_path: Path):
    small_run(data, tmp_path, 20, [telemetry.TensorBoard(tmp_path)]).finish(Stages())
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert set(TAGS) <= set(events.Tags()["scalars"])
    assert 1 <= events.Scalars("train/segments")[-1].value <= 4
    assert events.Scalars("train/lr")[-1].value == pytest.approx(1e-3, rel=0.5)
    assert events.Scalars("train/loss")[-1].step == 160
    assert events.Tags()["images"] == ["val/boards"]


def test_a_report_that_fails_ends_no_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for module in ("torch.utils.tensorboard", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    small_run(data, tmp_path, 20, [telemetry.TensorBoard(tmp_path)]).finish(Stages())
    said = capsys.readouterr().err
    assert said.count("goes on without TensorBoard (") == 1
    assert "goes on without curve.png (" in said


def test_wandb_that_does_not_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def init(**_: object) -> None:
        raise RuntimeError("timed out")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(ValueError, match=r"W&B does not start .timed out.; .* omit --wandb"):
        telemetry.WeightsAndBiases(tmp_path, {})


def test_wandb_that_is_missing_names_its_install_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'hrm-edge\[wandb\]'"):
        telemetry.require_wandb()


@pytest.mark.parametrize(("mode", "shared"), [("offline", "group"), ("online", "id")])
def test_a_resumed_run_keeps_its_history_in_wandb(
    mode: str, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Offline a start is a run of its own in one group, online it continues the same run."""
    starts = []
    library = SimpleNamespace(init=lambda **options: starts.append(options))
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv("WANDB_MODE", mode)
    for _ in range(2):
        telemetry.WeightsAndBiases(tmp_path, {})
    first, second = starts
    assert first[shared] == second[shared]
    assert ("id" in first) == (shared == "id")


def test_a_short_run_prints_each_validation_once(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    ended = succeeded(app, f"--run={run}", *fresh(data, 43))
    steps = [row["step"] for row in validations(run)]
    assert len(set(steps)) >= 10
    printed = re.findall(r"^ +(\d+) +\d+\.\d % ", ended.output, re.MULTILINE)
    assert [int(step) for step in printed] == sorted(set(steps))
    assert ended.output.count(HEADER) == 1
    assert "finished at step 43; checkpoint" in ended.output
    (run / "curve.png").unlink()
    program = (
        "import sys, pathlib, hrm_train.pictures as p; p.draw_curve(pathlib.Path(sys.argv[1]))"
    )
    notebook = {**os.environ, "MPLBACKEND": "module://of_a_notebook"}
    ran(sys.executable, "-c", program, str(run), env=notebook)
    assert (run / "curve.png").exists()


CPU = torch.device("cpu")


class Clock:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.now_s / 2


def test_samples_per_second_leave_out_what_is_no_training(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    timer = PhaseTimer(CPU)
    for _ in range(2):  # a phase entered twice adds up
        with timer.phase("forward"):
            clock.now_s += 0.25
    timer.count(16)
    with timer.aside():
        clock.now_s += 3.0
    clock.now_s += 0.5
    reading = timer.drain()
    figures = (reading["samples_per_s"], reading["step_ms"], reading["cpu_cores"])
    assert figures == (16.0, 1000.0, 0.5)
    assert reading["phase_ms"] == {"forward": 500.0}


@pytest.mark.gpu
def test_phases_on_a_gpu_are_device_time():
    timer = PhaseTimer(torch.device("cuda"))
    matrix = torch.randn(4096, 4096, device="cuda")
    with timer.phase("forward"):
        for _ in range(20):
            matrix = matrix @ matrix / 64
    timer.count(1)
    torch.cuda.synchronize()
    assert timer.drain()["phase_ms"]["forward"] > 1


@pytest.mark.gpu
def test_a_card_reports_its_sensors_and_what_it_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
):
    card = torch.device("cuda")
    found = meter.gpu_figures(card)
    assert 0 < found["gpu_power_w"] < 2000
    assert 0 < found["gpu_temperature_c"] < 120
    monkeypatch.setitem(meter.SENSORS, "gpu_power_w", (lambda _: 1 // 0, 1))
    assert meter.gpu_figures(card).keys() == found.keys() - {"gpu_power_w"}


def test_a_profile_names_phases_and_operators(data: Path, tmp_path: Path):
    trainer = small_trainer(data)
    run = tmp_path / "run"
    text = profile_steps(trainer.step, trainer.device, run, 2)
    assert trainer.progress.step == meter.WARM + 2
    assert (run / TABLE).read_text() == text
    for name in ("phase/forward", "phase/backward", "phase/optimizer", "aten::mm"):
        assert name in text
    trace = json.loads(gzip.decompress((run / TRACE).read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("phase/backward") == 2
