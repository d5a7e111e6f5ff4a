"""Lanes that share a device: equal time for all that have work, whatever a step of each costs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.worker.loop import FairTurns


def seconds_of(costs: dict[str, float], num_steps: int) -> tuple[dict[str, float], list[str]]:
    """How long each lane steps where all have work all the time, and the order of the steps."""
    turns = FairTurns(costs)
    spent = Counter[str]()
    order: list[str] = []
    for _ in range(num_steps):
        name = turns.next(list(costs))
        turns.charge(name, costs[name])
        spent[name] += costs[name]
        order.append(name)
    return dict(spent), order


def test_equal_steps_take_turns() -> None:
    _, order = seconds_of({"a": 1.0, "b": 1.0, "c": 1.0}, 6)
    assert "".join(order) == "abcabc"


def test_a_dear_step_waits_until_the_cheap_ones_have_had_as_much_time() -> None:
    spent, order = seconds_of({"cheap": 1.0, "dear": 10.0}, 112)
    assert spent == pytest.approx({"cheap": 100.0, "dear": 100.0}, abs=20.0)
    assert "".join(name[0] for name in order).count("dd") == 0


def test_a_lane_alone_steps_always_and_idle_lanes_are_none() -> None:
    turns = FairTurns(["a", "b"])
    assert [turns.next(["b"]) for _ in range(3)] == ["b"] * 3


def test_a_lane_that_was_idle_has_saved_nothing() -> None:
    turns = FairTurns(["a", "b"])
    for name in ("a", "b"):
        turns.charge(name, 1.0)
    for _ in range(50):
        assert turns.next(["a"]) == "a"
        turns.charge("a", 1.0)
    order = []
    for _ in range(8):
        name = turns.next(["a", "b"])
        turns.charge(name, 1.0)
        order.append(name)
    assert "bbb" not in "".join(order)


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
