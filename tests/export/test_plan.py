"""`--budget-minutes` picks the number of held-out puzzles."""

from dataclasses import replace

import pytest
from export_tools import small_model

from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_export import plan
from hrm_export.contents import served_graph
from hrm_export.options import Options
from hrm_puzzles import registry

EVERY_FORM = Options(fp16=True, int8=True, held_out=2000)
POLICY = HaltingPolicy(kind="learned", max_segments=16)
SERVED = served_graph(small_model(), registry.get("sudoku-4x4"), POLICY)


def one_second(*_: object) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("budget_s", "num_held_out"), [(1999, 1000), (2000, 2000), (40, 31), (1, plan.MIN_HELD_OUT)]
)
def test_held_out_puzzles_are_halved_until_they_fit(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, num_held_out: int
) -> None:
    monkeypatch.setattr(plan, "seconds_per_puzzle", one_second)
    planned = plan.plan_export(SERVED, replace(EVERY_FORM, budget_minutes=budget_s / 60))
    assert planned.num_held_out == num_held_out
    assert planned.estimate_s == num_held_out


def test_every_form_adds_to_the_estimate() -> None:
    one_form = plan.seconds_per_puzzle(SERVED, Options())
    assert 0 < one_form < plan.seconds_per_puzzle(SERVED, EVERY_FORM)
