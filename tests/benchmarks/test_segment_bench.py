"""Engines in turns: every one is measured beside the first of its batch, on the same puzzles."""

import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app
from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import rows_of


def test_a_ratio_says_how_many_times_as_fast_as_the_first_engine() -> None:
    first, second = rows_of(["cpu:fp32", "cpu:int8"], 2, np.array([[1.0, 0.5], [1.0, 0.25]]))
    assert (first["segment_ms"], first["ratio"]) == (1000.0, 1.0)
    assert [second[name] for name in ("segment_ms", "ratio_low", "ratio", "ratio_high")] == [375.0, 2.5, 3.0, 3.5]


@pytest.mark.process
def test_a_segment_is_timed_on_every_engine() -> None:
    options = ["--bundle", "sudoku-6x6", "--engine", "cpu:fp32", "--engine", "cpu", "--batch", "2"]
    result = CliRunner().invoke(app, ["segment", *options, "--rounds", "1", "--turn-s", "0", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(run["engine"], run["batch"]) for run in found["runs"]] == [("cpu:fp32", 2), ("cpu", 2)]
    assert found["runs"][0]["ratio"] == 1.0
    assert all(run["segment_ms"] > 0 for run in found["runs"])


def test_an_engine_the_bundle_does_not_hold_is_refused_in_one_sentence() -> None:
    result = CliRunner().invoke(app, ["segment", "--bundle", "sudoku-6x6", "--engine", "cpu:int3"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "int3" in result.stderr


def test_a_step_that_sleeps_costs_the_wall_more_than_the_cpu() -> None:
    wall_s, cpu_s = (step_seconds(lambda: time.sleep(0.05), 0.0, cpu_clock=by_cpu) for by_cpu in (False, True))
    assert wall_s >= 0.05 > cpu_s
