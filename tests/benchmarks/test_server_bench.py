"""The benchmarks over a real server: what `throughput` and `soak` find."""

import json

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app

pytestmark = pytest.mark.process


def test_throughput_measures_batches_singles_the_bound_and_latencies() -> None:
    bundle = "--bundle sudoku-6x6 --puzzles 10 --slots 2"
    ended = CliRunner().invoke(app, f"throughput {bundle} --seconds 1 --connections 4 --json")
    assert ended.exit_code == 0, ended.output
    passages = json.loads(ended.stdout)["passages"]
    routes = [passage["route"] for passage in passages]
    assert routes == ["/solve/batch", "/solve/batch", "/solve", "/solve"]
    _, batches, singles, arrivals = passages
    assert 0.1 < batches["share_of_bound"] <= 1.01
    assert arrivals["offered_per_s"] == pytest.approx(0.8 * singles["answered_per_s"])
    assert 0 < arrivals["p50_ms"] <= arrivals["p99_ms"]


def test_a_soak_finds_nothing_lost_wrong_or_left_behind() -> None:
    ended = CliRunner().invoke(app, "soak --requests 400 --slots 4 --json")
    figures = json.loads(ended.stdout)
    assert figures["requests"] == 400
    assert figures["faults"] == []
    assert ended.exit_code == 0
