"""Engines in turns: each is compared with the first of its batch, on the same puzzles."""

import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app
from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import rows_of


def test_a_ratio_is_the_speed_over_the_first_engine() -> None:
    seconds_RC = np.array([[1.0, 0.5], [1.0, 0.25]])
    first, second = rows_of(["cpu:fp32", "cpu:int8"], 2, seconds_RC)
    assert first["segment_ms"] == 1000.0
    assert first["ratio"] == 1.0
    assert second["segment_ms"] == 375.0
    ratios = [second[name] for name in ("ratio_low", "ratio", "ratio_high")]
    assert ratios == [2.5, 3.0, 3.5]


@pytest.mark.process
def test_a_segment_is_timed_on_every_engine() -> None:
    engines = "--bundle sudoku-6x6 --engine cpu:fp32 --engine cpu --batch 2"
    ended = CliRunner().invoke(app, f"segment {engines} --rounds 1 --turn-s 0 --json")
    assert ended.exit_code == 0, ended.output
    runs = json.loads(ended.stdout)["runs"]
    measured = [(run["engine"], run["batch"]) for run in runs]
    assert measured == [("cpu:fp32", 2), ("cpu", 2)]
    assert runs[0]["ratio"] == 1.0
    assert all(run["segment_ms"] > 0 for run in runs)


def test_an_engine_that_the_bundle_lacks_is_rejected_in_one_sentence() -> None:
    ended = CliRunner().invoke(app, "segment --bundle sudoku-6x6 --engine cpu:int3")
    assert ended.exit_code == 2
    assert ended.stderr.count("\n") == 1
    assert "int3" in ended.stderr


def test_a_step_that_sleeps_costs_the_wall_more_than_the_cpu() -> None:
    def sleep() -> None:
        time.sleep(0.05)

    wall_s = step_seconds(sleep, 0.0, cpu_clock=False)
    cpu_s = step_seconds(sleep, 0.0, cpu_clock=True)
    assert wall_s >= 0.05 > cpu_s
