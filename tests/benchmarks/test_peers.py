"""The peers of `hrm-bench peers`: the plain one runs here, the others need their packages."""

import json
import sys
from pathlib import Path

import pytest

from hrm_benchmarks import peers
from hrm_benchmarks.peers import Peer, PeerPlan, PuzzleLoad
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle

NUM_PUZZLES = 60  # enough for several ticks of the clock of CPU time
PLAN = PeerPlan(python=Path(sys.executable), rounds=1, connections=2, rate=50.0, seed=0)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> PuzzleLoad:
    monkeypatch.setitem(peers.LOADS, "small", ("sudoku-6x6", ("easy",)))
    return PuzzleLoad.named("small", Bundle.open(find_bundle("sudoku-6x6")), NUM_PUZZLES, 0)


@pytest.mark.process
def test_a_plain_server_around_the_same_graph_proves_the_same_puzzles(
    load: PuzzleLoad, tmp_path: Path
) -> None:
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
