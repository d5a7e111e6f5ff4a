"""The sizes of an export follow from its time and from what a segment costs."""

from dataclasses import replace

import pytest
from export_tools import small_model

from hrm_calibration.kept import Kept
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_export.contents import served_graph
from hrm_export.options import Options
from hrm_export.plan import MIN_HELD_OUT, SHARE, plan_for
from hrm_puzzles import registry

ALL = Options(fp16=True, int8=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedGraph:
    """Timed once, since what was timed is kept."""
    policy = HaltingPolicy(kind="learned", max_segments=16)
    kept = Kept(directory=tmp_path_factory.mktemp("kept"))
    return replace(served_graph(small_model(), registry.get("sudoku-4x4"), policy), kept=kept)


def test_where_there_is_time_nothing_is_given_up(served: ServedGraph) -> None:
    plan = plan_for(served, replace(ALL, budget_minutes=1e6))
    assert (plan.num_held_out, plan.num_segments, plan.num_golden) == (2000, 16, 16)
    assert "--budget-minutes" not in plan.sentence()


def test_puzzles_are_given_up_before_segments(served: ServedGraph) -> None:
    whole = plan_for(served, replace(ALL, budget_minutes=1e6)).seconds / 60
    half, least = (plan_for(served, replace(ALL, budget_minutes=share * whole)) for share in (0.5, 1e-6))
    assert MIN_HELD_OUT < half.num_held_out < 2000
    assert half.num_segments == 16
    assert (least.num_held_out, least.num_segments) == (MIN_HELD_OUT, 1)
    assert half.seconds <= SHARE * 30 * whole
    assert half.settings_at(0.25).num_choice == min(4096, 4 * half.settings.num_choice)
    assert "--budget-minutes buys more" in half.sentence()
