"""PyTorch behind the engine's contract says what the model says, whatever its slots went through before."""

import numpy as np
import torch
from export_tools import random_inputs, random_questions, small_model

from hrm_export.golden import record
from hrm_export.torch_engine import TorchEngine


def test_it_says_what_the_model_says_in_every_segment() -> None:
    model = small_model(max_segments=3)
    golden, engine = record(model, random_questions(model, 3)), TorchEngine(model, 4)
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
    engine, alone = TorchEngine(model, 2), TorchEngine(model, 1)
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
    assert np.allclose(engine.read_carry(2)[0][1], fresh.carry.z_high_BND[0].detach().numpy(), atol=1e-5)
