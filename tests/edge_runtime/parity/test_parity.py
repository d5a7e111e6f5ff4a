"""Golden traces: an engine that says the same passes, one that does not is caught where it begins."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_edge_runtime.engines.scripted import ScriptedEngine
from hrm_edge_runtime.parity.gates import passes
from hrm_edge_runtime.parity.report import ParityReport
from hrm_edge_runtime.parity.walk import compare, replay


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def engine_of(bundle: Bundle, num_slots: int) -> OnnxEngine:
    return engine_from_bundle(bundle, num_slots=num_slots, num_threads=1, want_logits=True)


def replayed(bundle: Bundle, name: str, index: tuple[int, ...], by: float) -> ParityReport:
    """The bundle's engine against its traces with one value of one array changed."""
    golden = bundle.golden()
    array = getattr(golden, name).copy()
    array[index] += by
    policy = replace(bundle.manifest.halting_policy(), kind="learned")
    return compare(
        replace(golden, **{name: array}),
        engine_of(bundle, 8),
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=policy,
    )


def test_the_engine_a_trace_came_from_passes(bundle: Bundle) -> None:
    report = replay(bundle, partial(engine_of, bundle))
    assert passes(report)
    assert report.max_logit_gap == 0.0
    assert report.num_puzzles == 5
    assert len(report.logit_gap_by_segment) == bundle.manifest.max_segments


def test_a_perturbed_logit_shows_in_its_segment_alone(bundle: Bundle) -> None:
    report = replayed(bundle, "logits_SBTV", (3, 1, 4, 2), 0.5)
    assert not passes(report)
    assert [gap > 1e-4 for gap in report.logit_gap_by_segment] == [False, False, False, True, False, False]


def test_a_changed_answer_is_counted(bundle: Bundle) -> None:
    report = replayed(bundle, "answer_SBT", (2, 0, 0), 1)
    assert report.num_different_answers == 1
    assert not passes(report)


def test_a_margin_that_halts_a_puzzle_elsewhere_is_counted(bundle: Bundle) -> None:
    assert bundle.golden().halt_margin_SB[0, 2] < 0  # it goes on after the first segment in truth
    report = replayed(bundle, "halt_margin_SB", (0, 2), 100.0)
    assert report.num_different_halts == 1
    assert not passes(report)


def test_a_halting_value_that_cancels_out_of_the_margin_is_seen(bundle: Bundle) -> None:
    report = replayed(bundle, "q_halt_SB", (1, 1), 0.01)
    assert report.num_different_halts == 0
    assert not passes(report)


def test_logits_that_are_not_finite_never_pass(bundle: Bundle) -> None:
    report = replayed(bundle, "logits_SBTV", (1, 1, 1, 1), np.nan)
    assert report.max_logit_gap == float("inf")
    assert not passes(report)


def test_an_engine_without_logits_is_refused(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="want_logits"):
        replay(bundle, lambda num_slots: ScriptedEngine(num_slots=num_slots, seq_len=16))
