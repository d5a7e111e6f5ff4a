"""The simulator's arithmetic, and one small load run against a real server over the scripted engine."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app
from hrm_benchmarks.load import poisson, simulate


def test_one_slot_serves_one_after_another() -> None:
    latency_s = simulate(np.array([0.0, 0.5, 10.0]), np.array([2, 3, 1]), step_s_B=np.ones(1), queue_limit=9)
    assert latency_s.tolist() == [2.0, 4.5, 1.0]


def test_who_comes_during_a_step_waits_for_the_next_and_pays_for_its_width() -> None:
    # alone until 1, then steps of two rows: the first ends at 1 + 2 = 3, the second, from 0.5, at 3 + 1
    latency_s = simulate(np.array([0.0, 0.5]), np.array([2, 2]), step_s_B=np.array([1.0, 2.0]), queue_limit=9)
    assert latency_s.tolist() == [3.0, 3.5]


def test_overhead_is_added_and_a_full_queue_drops() -> None:
    latency_s = simulate(np.array([0.0, 0.1]), np.array([1, 1]), step_s_B=np.ones(1), queue_limit=0, overhead_s=0.25)
    assert latency_s[0] == 1.25
    assert math.isnan(latency_s[1])


def test_one_slot_with_fixed_service_agrees_with_the_formula_of_pollaczek_and_khinchine() -> None:
    arrivals_s = poisson(0.7, 20_000, np.random.default_rng(3))
    latency_s = simulate(arrivals_s, np.ones(len(arrivals_s), np.int32), step_s_B=np.ones(1), queue_limit=100)
    expected_s = 1 + 0.7 / (2 * (1 - 0.7))  # a server that is asked between its steps only adds nothing here
    assert latency_s.mean() == pytest.approx(expected_s, rel=0.1)


@pytest.mark.process
def test_a_load_run_says_what_was_asked_of_it() -> None:
    arguments = "load --bundle script --step-ms 4 --slots 2 --seconds 1 --saturation-s 1 --puzzles 10 --share 0.5"
    said = CliRunner().invoke(app, [*arguments.split(), "--json"])
    assert said.exit_code == 0, said.stderr
    found = json.loads(said.stdout)
    assert len(found["step_ms"]) == 2
    assert 0 < found["capacity"]["share_of_bound"] <= 1.01
    (level,) = found["levels"]
    assert level["requests"] > 0
    assert level["drop_rate"] == 0
    assert level["mean_ms"] > 0


def test_a_bundle_that_is_not_there_ends_with_one_sentence() -> None:
    said = CliRunner().invoke(app, ["load", "--bundle", "nowhere"])
    assert said.exit_code == 2
    assert "Traceback" not in said.output
