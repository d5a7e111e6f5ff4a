"""Engines in turns: each is compared with the first of its batch, on the same puzzles."""

import time

import numpy as np
import pytest
from bench_tools import figures_of, refusal_of

from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import rows_of


def test_a_ratio_is_the_speed_over_the_first_engine() -> None:
    seconds_RC = np.array([[1.0, 0.5], [1.0, 0.25]])
    first, second = rows_of(["cpu:fp32", "cpu:int8"], 2, seconds_RC)
    assert first["segment_ms"] == 1000.0
    assert first["ratio"] == 1.0
    assert second["segment_ms"] == 375.0
    assert second["ratio_low"] == 2.5
    assert second["ratio"] == 3.0
    assert second["ratio_high"] == 3.5


@pytest.mark.process
def test_a_segment_is_timed_on_every_engine() -> None:
    engines = "--bundle sudoku-6x6 --engine cpu:fp32 --engine cpu --batch 2"
    figures = figures_of(f"segment {engines} --rounds 1 --turn-s 0")
    first, second = figures["runs"]
    assert first["engine"] == "cpu:fp32"
    assert second["engine"] == "cpu"
    assert first["ratio"] == 1.0
    for run in (first, second):
        assert run["batch"] == 2
        assert run["segment_ms"] > 0


def test_an_engine_that_the_bundle_lacks_is_rejected_in_one_sentence() -> None:
    sentence = refusal_of("segment --bundle sudoku-6x6 --engine cpu:int3")
    assert sentence.count("\n") == 1
    assert "int3" in sentence


def test_a_step_that_sleeps_costs_the_wall_more_than_the_cpu() -> None:
    def sleep() -> None:
        time.sleep(0.05)

    wall_s = step_seconds(sleep, 0.0, cpu_clock=False)
    cpu_s = step_seconds(sleep, 0.0, cpu_clock=True)
    assert wall_s >= 0.05 > cpu_s
