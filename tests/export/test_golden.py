"""Golden traces of puzzles on which rounding decides nothing, and PyTorch as an engine.

Shapes: B puzzles, S segments, T tokens, V vocabulary.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
from export_tools import random_inputs, random_questions, small_model

from hrm_calibration.judge import tolerance_for
from hrm_export.torch_engine import TorchEngine, golden_traces, record, survives_rounding_SB

MODEL = small_model()


def test_long_sequences_keep_fewer_traces():
    model = small_model(max_segments=2)
    puzzle_bytes = 2 * 16 * 6 * 4
    questions = random_questions(model, 8)
    for max_bytes, kept in ((3 * puzzle_bytes, 3), (4 * puzzle_bytes - 1, 3), (10, 1)):
        traces = golden_traces(model, questions, 0.0, 8, max_bytes=max_bytes)
        assert len(traces.golden.tokens_BT) == kept
        assert kept <= traces.num_tried <= 8


def test_a_puzzle_that_rounding_changes_is_left_out():
    golden = record(MODEL, random_questions(MODEL, 3))
    larger = replace(golden, logits_SBTV=golden.logits_SBTV.copy())
    larger.logits_SBTV[9, 1, 4, 2] += 1e-4
    survives_SB = survives_rounding_SB(golden, larger, 0.0)
    assert survives_SB[:9].all()
    assert (survives_SB[9:] == [True, False, True]).all()
    halting = replace(golden, halt_margin_SB=golden.halt_margin_SB + np.float32(1e-6))
    threshold = float(golden.halt_margin_SB[7, 0]) + 2e-6
    survives_SB = survives_rounding_SB(golden, halting, threshold)
    assert survives_SB[-1].tolist() == [False, True, True]
    logits_V = golden.logits_SBTV[3, 2, 0]
    *_, second, first = np.argsort(logits_V)
    logits_V[second] = logits_V[first] - 2e-6  # the answer depends on rounding
    other = replace(golden, logits_SBTV=golden.logits_SBTV + np.float32(1e-6))
    survives_SB = survives_rounding_SB(golden, other, 0.0)
    assert survives_SB[-1].tolist() == [True, True, False]


def test_logits_that_are_all_larger_round_more_and_survive_as_well():
    model = small_model()
    model.lm_head.weight.data *= 20
    golden = golden_traces(model, random_questions(model, 12), 0.0, 4).golden
    assert golden.answer_SBT.shape[:2] == (model.config.max_segments, 4)


def test_traces_are_those_of_float64_beside_the_rounding_of_float32():
    questions = random_questions(MODEL, 6)
    traces = golden_traces(MODEL, questions, 0.0, 6)
    exact = record(copy.deepcopy(MODEL).double(), questions)
    num_segments = len(traces.golden.answer_SBT)
    kept = [row.tobytes() for row in traces.golden.tokens_BT]
    rows = [row for row in range(6) if questions.tokens_NT[row].tobytes() in kept]
    expected_SBTV = exact.logits_SBTV[:num_segments, rows]
    assert np.allclose(traces.golden.logits_SBTV, expected_SBTV, rtol=0, atol=1e-7)
    assert 0 < traces.rounding < 1e-4


@pytest.mark.parametrize(
    ("rounding", "tolerance"), [(1e-6, 1e-4), (2.4e-5, 1e-4), (1e-4, 4e-4), (1e-2, 5e-4)]
)
def test_a_model_that_rounds_more_may_be_further_away(rounding: float, tolerance: float):
    assert tolerance_for(rounding) == pytest.approx(tolerance)


def test_traces_end_when_too_few_puzzles_survive_rounding():
    model = small_model(gain=1.0)
    questions = random_questions(model, 16)
    golden = golden_traces(model, questions, 0.0, 16).golden
    num_segments, num_puzzles = golden.answer_SBT.shape[:2]
    assert 1 <= num_segments < model.config.max_segments
    assert num_puzzles >= 4
    in_float64 = record(copy.deepcopy(model).double(), questions)
    survives_SB = survives_rounding_SB(record(model, questions), in_float64, 0.0)
    num_alike_S = survives_SB.sum(axis=1)
    assert num_alike_S[num_segments - 1] == num_puzzles
    assert num_alike_S[num_segments] < 4


def test_a_model_that_amplifies_rounding_everywhere_is_rejected():
    model = small_model(gain=8.0)
    with pytest.raises(ValueError, match="rounding alone changes"):
        golden_traces(model, random_questions(model, 4), 0.0, 4)


def test_a_moved_puzzle_goes_on_and_a_loaded_one_begins_anew():
    tokens_BT = random_inputs(MODEL, 3)["tokens_BT"]
    vector_E = MODEL.puzzle_table.numpy()[0]
    engine = TorchEngine(MODEL, 2)
    alone = TorchEngine(MODEL, 1)
    fresh = TorchEngine(MODEL, 1)
    engine.load(0, tokens_BT[0], vector_E)
    engine.load(1, tokens_BT[1], vector_E)
    alone.load(0, tokens_BT[1], vector_E)
    fresh.load(0, tokens_BT[2], vector_E)
    engine.step(2)
    alone.step(1)
    engine.move(1, 0)
    engine.load(1, tokens_BT[2], vector_E)
    margin_B = engine.step(2).halt_margin_B
    assert margin_B[0] == pytest.approx(alone.step(1).halt_margin_B[0], abs=1e-5)
    assert margin_B[1] == pytest.approx(fresh.step(1).halt_margin_B[0], abs=1e-5)
