"""Commands of `hrm-bench` on small real work: segments, families and sizes."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bench_tools import figures_of
from bundle_tools import shipped
from tiny_bundle import write_tiny_graph

from hrm_benchmarks import peers
from hrm_benchmarks.desktop import published
from hrm_benchmarks.desktop.compare import ARCHS, config_of, num_parameters
from hrm_benchmarks.desktop.scaling import PartOfSource
from hrm_benchmarks.limit import flop_of
from hrm_benchmarks.peers import Peer, PeerPlan, PuzzleLoad
from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import rows_of
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_train.batches import open_source


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


def test_a_step_that_sleeps_costs_the_wall_more_than_the_cpu() -> None:
    def sleep() -> None:
        time.sleep(0.05)

    wall_s = step_seconds(sleep, 0.0, cpu_clock=False)
    cpu_s = step_seconds(sleep, 0.0, cpu_clock=True)
    assert wall_s >= 0.05 > cpu_s


@pytest.mark.process
def test_throughput_measures_batches_singles_the_bound_and_latencies() -> None:
    bundle = "--bundle sudoku-6x6 --puzzles 10 --slots 2"
    figures = figures_of(f"throughput {bundle} --seconds 1 --connections 4")
    at_rate, batches, singles, arrivals = figures["passages"]
    assert at_rate["offered_per_s"] == 2000
    assert 0.1 < batches["share_of_bound"] <= 1.01
    assert arrivals["offered_per_s"] == pytest.approx(0.8 * singles["answered_per_s"])
    assert 0 < arrivals["p50_ms"] <= arrivals["p99_ms"]
    for passage in (at_rate, batches, singles, arrivals):
        assert passage["echoes"] > 1
        assert passage["host_share"] < 1


@pytest.mark.process
def test_a_segment_reaches_a_share_of_the_products_rate() -> None:
    figures = figures_of("limit --bundle sudoku-6x6 --rounds 1 --turn-s 0")
    one, eight = figures["rows"]
    assert [one["batch"], eight["batch"]] == [1, 8]
    assert one["mflop"] == eight["mflop"] > 0
    assert one["share"] > 0


def test_the_arithmetic_of_a_graph_is_counted_from_its_shapes(tmp_path: Path) -> None:
    write_tiny_graph(tmp_path / "step.onnx")
    mixing = 17 * 17 * 8
    levels = 2 * 17 * 8 * 8
    head = 16 * 8 * 6
    assert flop_of(tmp_path / "step.onnx") == 2 * (mixing + levels + head)


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "logistics-6x6"])
def test_the_families_have_about_as_many_parameters(name: str) -> None:
    puzzle = registry.get(name)
    for arch in ARCHS:
        config = config_of(arch, puzzle, 150_000)
        assert num_parameters(config) == pytest.approx(150_000, rel=0.15), arch


def test_a_table_and_a_picture_name_every_family(tmp_path: Path) -> None:
    sizes = "--puzzle sudoku-4x4 --puzzles 8 4 --parameters 30000 --cpu-s 0"
    runs = figures_of(f"compare {sizes} --seed 3 --seed 4 --out {tmp_path}")["runs"]
    assert [run["arch"] for run in runs] == list(ARCHS)
    assert json.loads((tmp_path / "compare.json").read_text()) == runs
    table = (tmp_path / "compare.md").read_text()
    for run in runs:
        assert len(run["exact"]) == len(run["cells"]) == 2
        assert f"| sudoku-4x4 | {run['arch']} |" in table
    assert (tmp_path / "compare.png").stat().st_size > 1000


@pytest.mark.process
def test_published_steps_and_loops_run_beside_ours() -> None:
    models = "--model hrm-6x6 --model trm-6x6 --puzzles 8"
    figures = figures_of(f"published {models} --rounds 1 --turn-s 0")
    runs = figures["runs"]
    steps = [run for run in runs if run["num_proven"] is None]
    assert [run["name"] for run in steps] == 2 * [published.OURS, published.EAGER]
    for run in steps:
        assert run["cpu_ms"] >= 0
        assert run["apart"] < published.LOGIT_TOLERANCE
    loops = runs[len(steps) :]
    assert [run["name"] for run in loops] == list(published.LOOPS)
    assert {run["num_proven"] for run in loops} == {8}


PUZZLE = "sudoku-4x4"


def test_every_part_gets_equal_samples_and_the_parts_double(tmp_path: Path) -> None:
    sizes = f"--puzzle {PUZZLE} --puzzles 16 4 --samples 128"
    figures = figures_of(f"scaling {sizes} --out {tmp_path}")
    runs = figures["runs"]
    assert [run["puzzles"] for run in runs] == [2, 4, 8, 16]
    assert {run["samples"] for run in runs} == {128}
    assert len({run["steps"] for run in runs}) == 1
    assert json.loads((tmp_path / "scaling.json").read_text())["runs"] == runs
    assert (tmp_path / "scaling.md").read_text().count("\n") == 2 + len(runs)
    assert (tmp_path / "scaling.png").stat().st_size > 1000


def test_a_smaller_part_is_in_a_larger_one_and_draws_nothing_else(tmp_path: Path) -> None:
    build(DataRecipe(puzzle=PUZZLE, num_train=32, num_test=4), tmp_path / "data")
    whole = open_source(tmp_path / "data", "train", registry.get(PUZZLE))
    chances_B2 = np.zeros((64, 2))
    drawn: list[set[int]] = []
    for count in (4, 8, 32):
        part = PartOfSource(whole, count, seed=1)
        groups_B = np.arange(64) % count
        drawn.append(set(part.pick(groups_B, chances_B2).tolist()))
        assert len(drawn[-1]) == count
    assert drawn[0] < drawn[1] < drawn[2]


NUM_PUZZLES = 60  # enough for several ticks of the clock of CPU time
PLAN = PeerPlan(python=Path(sys.executable), rounds=1, connections=2, rate=50.0, seed=0)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> PuzzleLoad:
    monkeypatch.setitem(peers.LOADS, "small", ("sudoku-6x6", ("easy",)))
    return PuzzleLoad.named("small", shipped("sudoku-6x6"), NUM_PUZZLES, 0)


@pytest.mark.process
def test_a_plain_server_proves_the_same_puzzles(load: PuzzleLoad, tmp_path: Path) -> None:
    rows = peers.measure([load], ["fastapi"], PLAN)
    assert [row["server"] for row in rows] == ["hrm-serve", "hrm-serve", "fastapi", "fastapi"]
    assert {row["num_proven"] for row in rows} == {NUM_PUZZLES}
    for row in rows:
        assert row["cpu_ms_a_proof"] > 0
        assert row["p50_ms"] <= row["p99_ms"]
        assert row["open_p50_ms"] > 0
    assert rows[0]["ratio"] == 1
    peers.save(tmp_path / "figures", "Small", rows)
    table = (tmp_path / "figures.md").read_text()
    assert "| small | fastapi | until-proven |" in table
    assert len(json.loads((tmp_path / "figures.json").read_text())["servers"]) == 4
    assert (tmp_path / "figures.png").stat().st_size > 1000


def test_every_peer_has_a_server_and_pinned_packages() -> None:
    pinned = (peers.FOLDER / "requirements.txt").read_text()
    for name in peers.SERVERS:
        peer = Peer(server=name, form="fixed")
        assert peer.num_lines
        assert f"{name}==" in pinned.replace("[serve]", "")


def test_ratios_are_taken_within_a_round() -> None:
    turns = [[{"cpu_ms_a_proof": 2.0}, {"cpu_ms_a_proof": 6.0}], [{"cpu_ms_a_proof": 10.0}] * 2]
    ours, theirs = peers.ratios(turns)
    assert [row["ratio"] for row in ours] == [1, 1]
    assert [row["ratio"] for row in theirs] == [3, 1]
