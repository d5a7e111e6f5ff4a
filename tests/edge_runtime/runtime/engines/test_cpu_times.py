"""`auto` on a CPU runs the fastest precision that holds its accuracy, by times measured here."""

import numpy as np
import onnx
import pytest
from bundle_tools import with_manifest
from scripted_engine import ScriptedEngine
from stand_ins import with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory, times
from hrm_edge_runtime.engines.engine import StepOutput, load_blanks
from hrm_edge_runtime.engines.factory import choose, presumed


@pytest.mark.parametrize(
    ("times_ms", "undecided", "arch", "chosen"),
    [
        ({"fp32": 1.0, "int8": 0.8}, [], "x86_64", "int8"),
        ({"fp32": 1.0, "int8": 0.8}, ["int8"], "x86_64", "fp32"),
        ({"fp32": 1.0, "int8": 0.95}, [], "x86_64", "fp32"),  # it costs solves and gains too little
        ({"fp32": 1.0, "int8": 2.0}, [], "x86_64", "fp32"),
        ({}, [], "x86_64", "fp32"),
        ({"fp32": 1.0, "fp16": 0.5}, [], "x86_64", "fp16"),
        ({"fp32": 1.0, "fp16": 0.5}, [], "aarch64", "fp32"),
        ({"fp32": 1.0, "fp16": 0.5}, [], "arm64", "fp32"),
    ],
)
def test_auto_runs_the_fastest_decided_precision(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    times_ms: dict[str, float],
    undecided: list[str],
    arch: str,
    chosen: str,
):
    """Float16 never runs on an Arm CPU."""
    monkeypatch.setattr(factory, "num_gpus", lambda: 0)
    monkeypatch.setattr(times, "kept", lambda _: times_ms)
    monkeypatch.setattr("platform.machine", lambda: arch)
    graph = onnx.load(bundle.graph_path("fp32"))
    doubts = dict.fromkeys(undecided, "loss 2 ± 3 points")
    bundle = with_manifest(with_precisions(bundle, fp16=graph, int8=graph), undecided=doubts)
    assert choose(bundle).precision == chosen
    assert presumed(bundle) == choose(bundle)
    assert choose(bundle, "cpu").precision == "fp32"
    assert choose(bundle, "cpu:int8").precision == "int8"
    assert choose(bundle, "auto:int8").precision == "int8"


class Paced(ScriptedEngine):
    """An engine whose steps take this much CPU time on a clock of its own."""

    def __init__(self, clock: list[float], step_ms: float) -> None:
        super().__init__(num_slots=1, seq_len=4)
        self.clock = clock
        self.step_ms = step_ms
        self.num_steps = 0
        load_blanks(self, np.zeros(1, np.float32))

    def step(self, num_active: int) -> StepOutput:
        self.num_steps += 1
        self.clock[0] += self.step_ms / 1000
        return super().step(num_active)


def paced(monkeypatch: pytest.MonkeyPatch, *steps_ms: float) -> dict[str, Paced]:
    clock = [0.0]
    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    names = ("fp32", "fp16")
    return {name: Paced(clock, step_ms) for name, step_ms in zip(names, steps_ms, strict=True)}


def test_times_are_cpu_times_and_close_ones_are_measured_longer(
    monkeypatch: pytest.MonkeyPatch,
):
    apart = paced(monkeypatch, 10.0, 5.0)
    assert times.in_turns(apart, 1) == pytest.approx({"fp32": 10.0, "fp16": 5.0})
    close = paced(monkeypatch, 10.0, 9.0)
    assert times.in_turns(close, 1) == pytest.approx({"fp32": 10.0, "fp16": 9.0})
    assert close["fp32"].num_steps > 3 * apart["fp32"].num_steps
