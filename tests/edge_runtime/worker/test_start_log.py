"""What a start logs about its lanes."""

import logging

import pytest
from lucky_lanes import REPORT

from hrm_edge_runtime.worker.lane_manager import AdmissionLimits, LaneManager


def test_the_figures_of_a_lane_are_one_line_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    manager = LaneManager(lambda _: None, AdmissionLimits({}))
    manager.note_ready({"sudoku": REPORT, "maze": REPORT})
    assert caplog.record_tuples == [
        ("hrm_edge_runtime.worker", logging.DEBUG, f"lane sudoku: {REPORT}"),
        ("hrm_edge_runtime.worker", logging.DEBUG, f"lane maze: {REPORT}"),
    ]
