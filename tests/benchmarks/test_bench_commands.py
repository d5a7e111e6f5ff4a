"""Commands of `hrm-bench` on small real work: segments, servers in trouble, and families."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from bench_tools import figures_of, refusal_of
from tiny_bundle import write_tiny_graph

from hrm_benchmarks.desktop.compare import ARCHS, config_of, num_parameters
from hrm_benchmarks.limit import flop_of
from hrm_benchmarks.report import step_seconds
from hrm_benchmarks.segments import rows_of
from hrm_puzzles import registry


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


@pytest.mark.process
def test_a_soak_finds_nothing_lost_wrong_or_left_behind() -> None:
    figures = figures_of("soak --requests 400 --slots 4")
    assert figures["requests"] == 400
    assert figures["faults"] == []


def names_after(prefix: str, counts: dict[str, int]) -> set[str]:
    return {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}


@pytest.mark.process
def test_in_all_troubles_each_request_is_answered_once_and_correctly_or_told_why_not() -> None:
    figures = figures_of("chaos --minutes 0.08 --every-s 0.6 --puzzles 20")
    assert figures["faults"] == []
    counts = figures["counts"]
    troubles = {"kill", "stop", "reload", "flood", "crumble", "read_slowly", "leave"}
    assert names_after("made: ", counts) == troubles
    assert counts["answered"] > 50
    assert names_after("refused: ", counts) <= {"engine-lost", "queue-full"}


def test_an_unknown_attack_is_rejected_in_one_sentence() -> None:
    sentence = refusal_of("chaos --attack sponges")
    assert "'sponges' is not an attack" in sentence


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "logistics-6x6"])
def test_the_families_have_about_as_many_parameters(name: str) -> None:
    puzzle = registry.get(name)
    for arch in ARCHS:
        config = config_of(arch, puzzle, 150_000)
        assert num_parameters(config) == pytest.approx(150_000, rel=0.15), arch


def test_a_table_and_a_picture_name_every_family(tmp_path: Path) -> None:
    sizes = "--puzzle sudoku-4x4 --puzzles 8 4 --parameters 30000 --cpu-s 0"
    figures = figures_of(f"compare {sizes} --seed 3 --seed 4 --out {tmp_path}")
    runs = figures["runs"]
    for run, arch in zip(runs, ARCHS, strict=True):
        assert run["arch"] == arch
        assert len(run["exact"]) == 2
        assert len(run["cells"]) == 2
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert saved == runs
    table = (tmp_path / "compare.md").read_text()
    for arch in ARCHS:
        assert f"| sudoku-4x4 | {arch} |" in table
    assert (tmp_path / "compare.png").stat().st_size > 1000
