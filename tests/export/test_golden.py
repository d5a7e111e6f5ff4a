"""Golden traces of puzzles on which rounding decides nothing, and PyTorch as an engine.

Shapes: B puzzles, S segments, T tokens, V vocabulary.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from export_tools import random_inputs, random_questions, small_model

from hrm_export.torch_engine import TorchEngine, golden_traces, record, survives_rounding_SB


def test_a_trace_runs_all_segments_from_the_models_own_start() -> None:
    model = small_model(max_segments=5)
    golden = record(model, random_questions(model, 2))
    first = model.segment(
        model.start(2), torch.from_numpy(golden.tokens_BT), torch.from_numpy(golden.puzzle_ids_B)
    )
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


def test_logits_that_are_all_larger_round_more_and_survive_as_well() -> None:
    model = small_model()
    for gain in (1, 20):
        model.lm_head.weight.data *= gain
        golden, _ = golden_traces(model, random_questions(model, 12), 0.0, 4)
        assert golden.answer_SBT.shape[:2] == (model.config.max_segments, 4)


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


def test_the_torch_engine_says_what_the_model_says_in_every_segment() -> None:
    model = small_model(max_segments=3)
    golden = record(model, random_questions(model, 3))
    engine = TorchEngine(model, 4)
    for slot, puzzle_id in enumerate(golden.puzzle_ids_B.tolist()):
        engine.load(slot, golden.tokens_BT[slot], model.puzzle_table.numpy()[puzzle_id])
    for segment in range(3):
        output = engine.step(3)
        assert np.allclose(output.logits_BTV, golden.logits_SBTV[segment], atol=1e-5)
        assert np.allclose(output.halt_margin_B, golden.halt_margin_SB[segment], atol=1e-5)
        assert np.allclose(output.q_halt_B, golden.q_halt_SB[segment], atol=1e-5)
        assert np.array_equal(output.answer_BT, golden.answer_SBT[segment])


def test_a_moved_puzzle_goes_on_and_a_loaded_one_begins_anew() -> None:
    model = small_model()
    tokens_BT = random_inputs(model, 3)["tokens_BT"]
    table = model.puzzle_table.numpy()
    engine = TorchEngine(model, 2)
    alone = TorchEngine(model, 1)
    for slot in range(2):
        engine.load(slot, tokens_BT[slot], table[0])
    alone.load(0, tokens_BT[1], table[0])
    engine.step(2)
    alone.step(1)
    engine.move(1, 0)
    engine.load(1, tokens_BT[2], table[1])
    outputs = engine.step(2)
    assert np.allclose(outputs.logits_BTV[0], alone.step(1).logits_BTV[0], atol=1e-5)
    fresh = model.segment(model.start(1), torch.from_numpy(tokens_BT[2:]), torch.tensor([1]))
    assert np.allclose(outputs.logits_BTV[1], fresh.logits_BTV[0].detach().numpy(), atol=1e-5)
    assert np.allclose(
        engine.read_carry(2)[0][1], fresh.carry.z_high_BND[0].detach().numpy(), atol=1e-5
    )
