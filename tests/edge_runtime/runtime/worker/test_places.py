"""Places of a lane: bounded, given in order of arrival, and one given back wakes one line."""

import asyncio

import pytest

from hrm_edge_runtime.worker.lane_manager import Places
from hrm_edge_runtime.worker.lanes import LaneKey

LANE = LaneKey("a")


def served(limit: int) -> Places:
    places = Places({LANE: limit})
    places.serve(LANE, limit)
    return places


async def test_a_place_given_back_wakes_the_line_that_waits_longest_and_no_other():
    lane = served(2)[LANE]
    turns = [lane.join() for _ in range(5)]
    assert [turn.done() for turn in turns] == [True, False, False, False, False]
    for number in range(1, 5):
        lane.leave()
        assert [turn.done() for turn in turns] == [index <= number for index in range(5)]
    assert lane.num_taken == 1


async def test_half_of_the_places_are_for_single_requests():
    lane = served(6)[LANE]
    turns = [lane.join() for _ in range(6)]
    assert sum(turn.done() for turn in turns) == 3
    assert [lane.take() for _ in range(4)] == [True, True, True, False]
    for _ in range(3):
        lane.leave()
    assert sum(turn.done() for turn in turns) == 3
    lane.leave()
    assert sum(turn.done() for turn in turns) == 4


async def test_a_line_that_leaves_gives_its_place_to_the_next():
    lane = served(2)[LANE]
    first = lane.join()
    second = lane.join()
    third = lane.join()
    lane.quit(second)  # it waited
    lane.quit(first)  # it had just got its place
    assert third.done()
    lane.leave()
    assert lane.num_taken == 0


async def test_lines_wait_for_an_engine_and_do_not_wait_for_a_lane_that_closes():
    places = Places({LANE: 4})
    lane = places[LANE]
    turns = [lane.join() for _ in range(5)]
    assert not any(turn.done() for turn in turns)
    places.serve(LANE, 4)
    assert [turn.done() for turn in turns] == [True, True, False, False, False]
    places.pause()
    lane.leave()
    assert not turns[2].done()
    places.serve(LANE, 4)
    assert turns[2].done()
    closing = asyncio.ensure_future(places.close(LANE))
    await asyncio.sleep(0)
    assert not lane.is_open
    assert [turn.result() for turn in turns] == [True, True, True, False, False]
    assert not closing.done()
    lane.leave()
    lane.leave()
    await asyncio.wait_for(closing, 10)
    with pytest.raises(KeyError):
        places[LANE]
