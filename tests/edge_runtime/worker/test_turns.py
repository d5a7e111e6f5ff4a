"""Lanes that share a device: equal time for all that have work, whatever a step of each costs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.worker.loop import FairTurns


def test_a_lane_that_was_idle_has_saved_nothing() -> None:
    turns = FairTurns(["a", "b"])
    for name in ("a", "b"):
        turns.charge(name, 1.0)
    for _ in range(50):
        assert turns.next(["a"]) == "a"
        turns.charge("a", 1.0)
    order = ""
    for _ in range(8):
        name = turns.next(["a", "b"])
        turns.charge(name, 1.0)
        order += name
    assert "bbb" not in order


@given(st.dictionaries(st.sampled_from("abcde"), st.floats(0.02, 1.0), min_size=2))
@settings(max_examples=60, deadline=None)
def test_busy_lanes_get_the_same_time_within_one_dear_step(costs: dict[str, float]) -> None:
    total_s = 10 * max(costs.values())
    turns = FairTurns(costs)
    spent = dict.fromkeys(costs, 0.0)
    while sum(spent.values()) < total_s * len(costs):
        name = turns.next(list(costs))
        turns.charge(name, costs[name])
        spent[name] += costs[name]
    difference_s = max(spent.values()) - min(spent.values())
    assert difference_s <= 2 * max(costs.values()) + min(costs.values())
