"""`hrm-bench serve`, `segment` and `peers`: the steps of each policy, and real runs."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_tools import json_of, ran
from simulated_device import Device, SimulatedEngine
from tiny_bundle import write_tiny_bundle

from hrm_benchmarks import load, peers, policies
from hrm_benchmarks.cli import app
from hrm_benchmarks.command import PeerOptions
from hrm_benchmarks.peers import Peer, PuzzleLoad
from hrm_benchmarks.policies import Bench
from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import SIDE, flop_of, rows_of
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
from hrm_puzzles.data.sources import questions_made

PUZZLE = registry.get("sudoku-4x4")
SEGMENTS = [1, 4, 2, 1, 3]  # of the puzzles in order; two slots, one second per step
NAMES = [policy.name for policy in policies.POLICIES]


def simulated() -> Bench:
    """Two slots, on a device that takes a second a step and no time of a host."""
    device = Device(name="even", step_s=lambda _: 1.0, host_factor=0.0, rates_per_s=())
    questions = questions_made(PUZZLE, len(SEGMENTS), difficulty="easy", seed=0)
    recording = {}
    for question in questions:
        unsolved = [question.tokens_T] * (SEGMENTS[question.index] - 1)
        recording[question.tokens_T.tobytes()] = [*unsolved, question.labels_T]
    engine = SimulatedEngine(recording, device, 2)
    return Bench(
        engine=engine,
        puzzle=PUZZLE,
        puzzle_table=np.zeros((1, 1), np.float32),
        questions=questions,
        rule=HaltingPolicy(kind="verified", max_segments=16),
        clock=engine.now_s,
        title="tiny",
    )


def test_each_policy_takes_the_steps_of_its_rule():
    rows = {row["policy"]: row for row in policies.measure(simulated(), rounds=1)}
    steps = {name: row["steps"] for name, row in rows.items()}
    assert steps == {
        "refill": 7,  # puzzles in the slots: 01 21 21 31 4 4 4
        "fixed": 48,  # three batches of 16
        "slowest": 9,  # batches of two: 4 + 2 + 3
        "compaction": 9,
        "one-at-a-time": 11,  # 1 + 4 + 2 + 1 + 3
    }
    assert rows["refill"]["share_of_bound"] == 1.0
    assert rows["slowest"]["refill_ratio"] == pytest.approx(9 / 7)
    for name, row in rows.items():
        expected = 16 if name == "fixed" else np.mean(SEGMENTS)
        assert row["mean_segments"] == pytest.approx(expected)
        assert row["exact"] == 1.0


def test_the_command_measures_a_bundle_on_puzzles_from_a_file(tmp_path: Path):
    bundle = write_tiny_bundle(tmp_path / "tiny.bundle")
    csv = tmp_path / "puzzles.csv"
    csv.write_text("source,question,answer,rating\nours,1.3.341.2143432.,1234341221434321,0\n")
    figures = json_of(app, *f"serve --bundle {bundle} --csv {csv} --slots 2 --cpu-clock".split())
    rows = {row["policy"]: row for row in figures["rows"]}
    assert list(rows) == NAMES
    assert rows["refill"]["mean_segments"] == 6
    assert rows["refill"]["exact"] == rows["fixed"]["exact"] == 0


@pytest.mark.process
def test_a_server_is_measured_through_http(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "WARM_UP_S", 0.1)
    bundle = "--bundle sudoku-6x6 --puzzles 10 --slots 2"
    figures = json_of(app, *f"serve --http {bundle} --seconds 1 --connections 4".split())
    batches, singles = figures["rows"]
    for row in (batches, singles):
        assert 0 < row["share_of_bound"] <= 1.01
        assert 0 < row["http_cpu_us"] < 1e3 * row["cpu_ms"]
        assert row["ready_s"] > 0
        assert row["memory_mb"] > 10
    assert 0 < singles["open_p50_ms"] <= singles["open_p99_ms"]


def test_a_ratio_is_the_speed_over_the_first_engine_and_a_share_that_of_a_product():
    product_s = 2 * SIDE**3 / 1e9  # a rate of 1 GFLOP/s
    seconds_RC = np.array([[1.0, 0.5, product_s], [1.0, 0.25, product_s]])
    first, second = rows_of(seconds_RC, batch=2, flop=250_000_000)
    assert first["step_ms"] == 1000.0
    assert first["ratio"] == 1.0
    assert first["share"] == pytest.approx(0.5)
    assert second["step_ms"] == 375.0
    assert second["ratio_low"] == 2.5
    assert second["ratio"] == 3.0
    assert second["ratio_high"] == 3.5
    assert rows_of(seconds_RC, batch=2, flop=None)[0]["share"] is None


@pytest.mark.process
def test_a_segment_is_timed_on_every_engine():
    engines = "--bundle sudoku-6x6 --engine cpu:fp32 --engine cpu --batch 2"
    figures = json_of(app, *f"segment {engines} --rounds 1 --turn-s 0".split())
    first, second = figures["rows"]
    assert (first["engine"], second["engine"]) == ("cpu:fp32", "cpu")
    assert first["ratio"] == 1.0
    for row in (first, second):
        assert row["batch"] == 2
        assert row["step_ms"] > 0
        assert row["share"] > 0


def test_the_arithmetic_of_a_segment_is_counted_from_its_shapes(tmp_path: Path):
    bundle = Bundle.open(write_tiny_bundle(tmp_path / "tiny.bundle"))
    mixing = 17 * 17 * 8
    levels = 2 * 17 * 8 * 8
    head = 16 * 8 * 6
    assert flop_of(bundle) == 2 * (mixing + levels + head)


def test_a_step_that_sleeps_costs_the_wall_more_than_the_cpu():
    def sleep() -> None:
        time.sleep(0.05)

    wall_s = step_seconds(sleep, 0.0, cpu_clock=False)
    cpu_s = step_seconds(sleep, 0.0, cpu_clock=True)
    assert wall_s >= 0.05 > cpu_s


ON_A_JETSON = """
import sys
sys.modules.update(dict.fromkeys(("torch", "safetensors", "onnx", "matplotlib")))  # not installed
from hrm_benchmarks.cli import app
app()
"""


@pytest.mark.process
def test_serve_and_segment_need_nothing_that_a_jetson_lacks(tmp_path: Path):
    bundle = write_tiny_bundle(tmp_path / "tiny.bundle")
    short = {"serve": ["--puzzles=2"], "segment": ["--rounds=1", "--turn-s=0", "--batch=1"]}
    for name, options in short.items():
        ended = ran(sys.executable, "-c", ON_A_JETSON, name, f"--bundle={bundle}", *options)
        assert ended.stdout.count("\n| ") >= 3


NUM_PUZZLES = 60  # enough for several ticks of the clock of CPU time


@pytest.mark.process
def test_a_plain_server_proves_the_same_puzzles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(peers.LOADS, "small", ("sudoku-6x6", "easy"))
    monkeypatch.setattr(peers, "OUR_FORMS", ("default",))
    monkeypatch.delitem(peers.BATCH_OF, "fixed")
    loads = [PuzzleLoad.named("small", NUM_PUZZLES, seed=0)]
    options = PeerOptions(python=Path(sys.executable), connections=2, rate=50.0, rounds=1)
    rows = peers.rows_of(loads, ["fastapi"], options)
    assert [row["server"] for row in rows] == ["hrm-serve", "fastapi"]
    assert {row["num_proven"] for row in rows} == {NUM_PUZZLES}
    for row in rows:
        assert row["cpu_ms_a_proof"] > 0
        assert row["p50_ms"] <= row["p99_ms"]
        assert row["open_p50_ms"] > 0
    assert rows[0]["ratio"] == 1


def test_every_peer_has_a_server_and_pinned_packages():
    pinned = (peers.FOLDER / "requirements.txt").read_text()
    for name in peers.SERVERS:
        command = Peer(server=name, form="fixed").command
        assert (peers.FOLDER / f"{name}_server.py").is_file(), command
        assert f"{name}==" in pinned


def test_ratios_are_taken_within_a_round():
    ours = [{"cpu_ms_a_proof": 2.0}, {"cpu_ms_a_proof": 10.0}]
    theirs = [{"cpu_ms_a_proof": 6.0}, {"cpu_ms_a_proof": 10.0}]
    summary = peers.summary(theirs, ours)
    assert (summary["ratio_low"], summary["ratio"], summary["ratio_high"]) == (1, 2, 3)
    assert peers.summary(ours, ours)["ratio"] == 1
