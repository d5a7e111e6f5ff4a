"""The number of slots of a lane, from times of a segment that are measured and kept."""

import json
import os
from pathlib import Path

import pytest
from bundle_tools import shipped
from hypothesis import given
from hypothesis import strategies as st

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.times import STEPS, StepTimesFile
from hrm_edge_runtime.worker.lanes import FAIR_SLOTS, NOISE, sizing_from
from hrm_host import system

CHOICE = ("cpu", "fp32")


@pytest.mark.parametrize(
    ("step_ms", "num_slots", "rule"),
    [
        ({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0}, 4, "compute-bound"),
        ({1: 10.0}, 1, "compute-bound"),
        ({1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 16: 10.0}, 16, "knee"),
        ({1: 10.0, 2: 10.5, 4: 12.0, 8: 21.0, 16: 41.0}, 8, "knee"),
    ],
)
def test_slots_are_few_or_at_the_knee(step_ms: dict[int, float], num_slots: int, rule: str):
    assert sizing_from(step_ms) == (num_slots, rule)


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=6))
def test_no_choice_is_slower_than_one_puzzle_at_a_time(times: list[float]):
    curve = {2**power: seconds for power, seconds in enumerate(times)}
    num_slots, rule = sizing_from(curve)
    assert num_slots / curve[num_slots] >= (1 - NOISE) / curve[1] * (1 - 1e-9)
    assert rule == "knee" or num_slots <= FAIR_SLOTS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine without other work."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return tmp_path / "cache" / "hrm-edge" / STEPS


def kept_file(cache: Path) -> Path:
    (file,) = cache.iterdir()
    return file


def test_figures_are_kept_for_one_graph_engine_and_number_of_threads(cache: Path):
    del cache
    bundle = shipped("sudoku-6x6")
    written = StepTimesFile(bundle, *CHOICE, 1)
    written.keep_step_times({1: 0.01, 2: 0.02})
    written.keep_memory(2, 1000)
    written.keep_memory(4, 2000)
    kept = StepTimesFile(bundle, *CHOICE, 1)
    assert kept.step_times(4) == {1: 0.01, 2: 0.02}
    assert kept.step_times(1) == {1: 0.01}  # of a command line with fewer slots
    assert [kept.memory_bytes(slots) for slots in (2, 4, 8)] == [1000, 2000, 0]
    others = [
        StepTimesFile(bundle, *CHOICE, 2),
        StepTimesFile(bundle, "cpu", "int8", 1),
        StepTimesFile(shipped("maze-8x8"), *CHOICE, 1),
    ]
    for other in others:
        assert (other.step_times(4), other.memory_bytes(2)) == ({}, 0)


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "null",
        '{"KEY": {"step_s": [1]}}',
        '{"KEY": {"step_s": {"1": NaN}}}',
        '{"KEY": {"memory_bytes": {"4": "much"}}}',
    ],
)
def test_malformed_figures_are_remeasured(tiny_bundle: Path, cache: Path, content: str):
    figures = StepTimesFile(Bundle.open(tiny_bundle), *CHOICE, 1)
    figures.keep_memory(4, 2000)
    file = kept_file(cache)
    (key,) = json.loads(file.read_text())
    file.write_text(content.replace("KEY", key))
    assert (figures.step_times(4), figures.memory_bytes(4)) == ({}, 0)
    figures.keep_step_times({1: 0.5})
    assert figures.step_times(4) == {1: 0.5}


def test_figures_in_a_bundle_are_ignored(copied: Path, cache: Path):
    """A bundle may come from a stranger: a million slots fill memory, a pipe blocks a reader."""
    (copied / "engines").mkdir()
    os.mkfifo(copied / "engines" / "steps.json")
    figures = StepTimesFile(Bundle.open(copied), *CHOICE, 1)
    assert figures.step_times(4) == {}
    figures.keep_step_times({1: 0.01, 1_000_000: 0.01})
    assert figures.step_times(4) == {1: 0.01}
    with kept_file(cache).open("ab") as file:
        file.truncate(1 << 30)
    assert figures.step_times(4) == {}


def test_times_of_a_busy_machine_are_not_kept(
    tiny_bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    del cache
    figures = StepTimesFile(Bundle.open(tiny_bundle), *CHOICE, 1)
    for load, kept in ((1000.0, {}), (0.0, {1: 0.5})):
        monkeypatch.setattr(system, "load_average", lambda load=load: load)
        figures.keep_step_times({1: 0.5})
        assert figures.step_times(4) == kept
