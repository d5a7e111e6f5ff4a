"""Two runs over the same puzzles, on tables small enough to reckon by hand."""

import numpy as np
import pytest

from hrm_calibration.int8_report import paired


def runs(both: int, lost: int, won: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    reference = [True] * both + [True] * lost + [False] * won + [False] * neither
    ours = [True] * both + [False] * lost + [True] * won + [False] * neither
    return np.array(reference), np.array(ours)


def test_losses_and_wins_are_counted_puzzle_by_puzzle() -> None:
    found = paired(*runs(both=80, lost=6, won=2, neither=12))
    assert (found.num_puzzles, found.num_lost, found.num_won) == (100, 6, 2)
    assert (found.reference, found.ours) == (0.86, 0.82)
    assert found.loss == pytest.approx(0.04)


def test_the_interval_is_walds_with_half_a_puzzle_in_each_cell() -> None:
    found = paired(*runs(both=80, lost=6, won=2, neither=12))
    half = 1.96 * np.sqrt(9 - 16 / 102) / 102  # 6.5 lost, 2.5 won, of 102
    assert (found.low, found.high) == pytest.approx((4 / 102 - half, 4 / 102 + half), abs=1e-5)


def test_equal_runs_still_have_an_interval() -> None:
    found = paired(*runs(both=90, lost=0, won=0, neither=10))
    assert found.loss == 0
    assert found.low == -found.high
    assert 0 < found.high < 0.03


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        cell_N = rng.choice(4, 500, p=(0.85, 0.04, 0.02, 0.09))
        found = paired(np.isin(cell_N, (0, 1)), np.isin(cell_N, (0, 2)))
        held += found.low <= 0.02 <= found.high
    assert 0.92 < held / 400 < 0.98
