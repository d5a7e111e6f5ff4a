"""Golden traces: what PyTorch says, of puzzles on which rounding decides nothing.

Shapes: B puzzles, S segments, T tokens, V vocabulary.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from export_tools import random_questions, small_model

from hrm_export.golden import golden_traces, record, survives_rounding_SB


def test_a_trace_runs_all_segments_from_the_models_own_start() -> None:
    model = small_model(max_segments=5)
    golden = record(model, random_questions(model, 2))
    first = model.segment(model.start(2), torch.from_numpy(golden.tokens_BT), torch.from_numpy(golden.puzzle_ids_B))
    assert golden.logits_SBTV.shape == (5, 2, 16, 6)
    assert np.array_equal(golden.logits_SBTV[0], first.logits_BTV.detach().numpy())
    assert np.array_equal(golden.halt_margin_SB[0], model.margin(first).detach().numpy())


def test_as_many_traces_are_kept_as_asked_for() -> None:
    model = small_model()
    golden, num_tried = golden_traces(model, random_questions(model, 12), 0.0, 3)
    assert len(golden.tokens_BT) == 3
    assert 3 <= num_tried <= 12


def test_long_sequences_keep_fewer_traces() -> None:
    model = small_model(max_segments=2)
    bytes_per_puzzle = 2 * 16 * 6 * 4
    for max_bytes, kept in ((3 * bytes_per_puzzle, 3), (4 * bytes_per_puzzle - 1, 3), (10, 1)):
        golden, _ = golden_traces(model, random_questions(model, 8), 0.0, 8, max_bytes=max_bytes)
        assert len(golden.tokens_BT) == kept


def test_a_puzzle_on_which_rounding_grows_is_left_out() -> None:
    model = small_model()
    golden = record(model, random_questions(model, 3))
    other = replace(golden, logits_SBTV=golden.logits_SBTV.copy())
    other.logits_SBTV[9, 1, 4, 2] += 1e-4
    assert survives_rounding_SB(golden, golden, 0.0).all()
    survives_SB = survives_rounding_SB(golden, other, 0.0)
    assert survives_SB[:9].all()
    assert (survives_SB[9:] == [True, False, True]).all()


def test_a_puzzle_whose_answer_hangs_on_rounding_is_left_out() -> None:
    model = small_model()
    golden = record(model, random_questions(model, 3))
    logits_TV = golden.logits_SBTV[3, 2]
    order = np.argsort(logits_TV[0])
    logits_TV[0, order[-2]] = logits_TV[0, order[-1]] - 2e-6
    other = replace(golden, logits_SBTV=golden.logits_SBTV + np.float32(1e-6))
    assert survives_rounding_SB(golden, other, 0.0)[-1].tolist() == [True, True, False]


def test_a_puzzle_whose_halt_hangs_on_rounding_is_left_out() -> None:
    model = small_model()
    golden = record(model, random_questions(model, 3))
    other = replace(golden, halt_margin_SB=golden.halt_margin_SB + np.float32(1e-6))
    threshold = float(golden.halt_margin_SB[7, 0]) + 2e-6
    assert survives_rounding_SB(golden, other, threshold)[-1].tolist() == [False, True, True]


def test_traces_end_where_too_few_puzzles_survive_rounding() -> None:
    model = small_model(gain=1.0)
    questions = random_questions(model, 16)
    golden, _ = golden_traces(model, questions, 0.0, 16)
    num_segments, num_puzzles = golden.answer_SBT.shape[:2]
    assert 1 <= num_segments < model.config.max_segments
    assert num_puzzles >= 4
    whole = record(model, questions)
    alike_SB = survives_rounding_SB(whole, record(copy.deepcopy(model).double(), questions), 0.0)
    assert alike_SB[num_segments - 1].sum() == num_puzzles
    assert alike_SB[num_segments].sum() < 4


def test_a_model_that_amplifies_rounding_everywhere_is_refused() -> None:
    model = small_model(gain=8.0)
    with pytest.raises(ValueError, match="rounding alone changes"):
        golden_traces(model, random_questions(model, 4), 0.0, 4)
