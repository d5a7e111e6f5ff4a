"""`--budget-minutes` picks the number of held-out puzzles; a forecast follows once one form ran."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import succeeded
from export_tools import small_model

from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_export import plan
from hrm_export.cli import main as app
from hrm_export.contents import served_graph
from hrm_export.options import Options
from hrm_export.plan import seconds_left
from hrm_puzzles import registry

ROOT = Path(__file__).parents[2]
EVERY_FORM = Options(fp16=True, int8=True, held_out=2000)
POLICY = HaltingPolicy(kind="learned", max_segments=16)
SERVED = served_graph(small_model(), registry.get("sudoku-4x4"), POLICY)


@pytest.mark.parametrize(
    ("budget_s", "num_held_out"), [(1999, 1000), (2000, 2000), (40, 31), (1, plan.MIN_HELD_OUT)]
)
def test_budget_halves_the_held_out(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, num_held_out: int
) -> None:
    monkeypatch.setattr(plan, "seconds_per_puzzle", lambda *_: 1.0)
    planned = plan.plan_export(SERVED, replace(EVERY_FORM, budget_minutes=budget_s / 60))
    assert planned.num_held_out == num_held_out
    assert planned.estimate_s == num_held_out


def test_every_form_adds_to_the_estimate() -> None:
    one_form = plan.seconds_per_puzzle(SERVED, Options())
    assert 0 < one_form < plan.seconds_per_puzzle(SERVED, EVERY_FORM)


@pytest.mark.slow
def test_the_forecast_is_within_a_factor_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # CPU seconds, because other processes of the machine must not decide this test.
    monkeypatch.setattr("hrm_export.precisions.perf_counter", time.process_time)
    monkeypatch.setattr("hrm_host.machine.num_cores", lambda: 1)
    found: list[float] = []
    began: list[float] = []

    def forecast(*args: Any) -> float:
        found.append(seconds_left(*args))
        began.append(time.process_time())
        return found[0]

    monkeypatch.setattr("hrm_export.precisions.seconds_left", forecast)
    source = ROOT / "model" / "checkpoints" / "sudoku-6x6"
    forms = ["--fp16", "--int8", "--calib", "sudoku-6x6", "--max-loss", "100"]
    sizes = ["--held-out", "120", "--out", str(tmp_path / "out.bundle")]
    succeeded(app, source, *forms, *sizes)
    took_s = time.process_time() - began[0]
    assert took_s / 2 <= found[0] <= 2 * took_s
