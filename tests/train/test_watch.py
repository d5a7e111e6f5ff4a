"""The watch: what lasts is said once, what jumps is seen, what is no number ends the run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hrm_train.meter import Reading
from hrm_train.nvml import reasons
from hrm_train.watch import LASTING, LEAST, THROTTLED, Watch, require_finite, spike_height


def reading(data_ms: float) -> Reading:
    return Reading(steps=20, step_ms=100.0, samples_per_s=80.0, phase_ms={"data": data_ms, "forward": 60.0})


def noisy_losses(count: int) -> list[float]:
    return (1 + 0.05 * np.random.default_rng(0).standard_normal(count)).tolist()


def test_waiting_for_rows_is_said_once_and_only_when_it_lasts() -> None:
    watch = Watch()
    said = [watch.see(reading(data_ms=16.0), [], ()) for _ in range(LASTING + 3)]
    assert [len(warnings) for warnings in said] == [0] * (LASTING - 1) + [1, 0, 0, 0]
    assert "16 % of each step" in said[LASTING - 1][0]


def test_a_moment_of_waiting_is_forgotten() -> None:
    watch = Watch()
    waits = [20.0, 20.0, 1.0] * 5
    assert [watch.see(reading(wait), [], ()) for wait in waits] == [[]] * 15


@pytest.mark.parametrize("reason", sorted(THROTTLED))
def test_each_way_of_throttling_has_its_remedy(reason: str) -> None:
    watch = Watch()
    said = [warning for _ in range(9) for warning in watch.see(reading(0.0), [], (reason,))]
    assert said == [THROTTLED[reason]]


def test_a_jump_of_the_loss_is_said_once() -> None:
    watch = Watch()
    assert watch.see(reading(0.0), noisy_losses(LEAST), ()) == []
    assert "jumped to 3" in watch.see(reading(0.0), [1.0, 3.0, 1.0], ())[0]
    assert watch.see(reading(0.0), [3.0], ()) == []


def test_ordinary_noise_and_slow_drift_are_no_jump() -> None:
    losses = (np.linspace(3, 1, 2000) + 0.05 * np.random.default_rng(1).standard_normal(2000)).tolist()
    watch = Watch()
    assert [w for start in range(0, 2000, 20) for w in watch.see(reading(0.0), losses[start : start + 20], ())] == []


def test_a_flat_loss_is_calm() -> None:
    assert spike_height(1.05, [1.0] * LEAST) < 10 < spike_height(1.2, [1.0] * LEAST)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_ends_the_run(value: float) -> None:
    require_finite({"loss": 1.0}, 7, "advice")
    with pytest.raises(FloatingPointError, match=f"gradient_norm is {value} at step 7.*advice"):
        require_finite({"loss": 1.0, "gradient_norm": value}, 7, "advice")


def test_throttle_bits_are_named_and_idling_is_no_reason() -> None:
    assert reasons(0x01 | 0x02 | 0x10) == ()
    assert reasons(0x04) == ("power",)
    assert reasons(0x08 | 0x40) == ("thermal",)
    assert reasons(0x08) == ("hardware",)
