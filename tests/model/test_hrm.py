"""Laws of one segment: rows, gradients, the carry, and halting, for each architecture."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry, SegmentOutput

SIZES = HRMConfig(
    vocab_size=6,
    seq_len=16,
    hidden_size=48,
    num_heads=4,
    puzzle_vector_size=48,
    positions="learned",
    low_layers=1,
)
TRM = {"arch": "trm", "puzzle_positions": 16, "halt_rule": "q_halt", "high_layers": 1}
TRANSFORMER = {"arch": "transformer", "max_segments": 1}


def fresh_model(**changes: Any) -> HRM:
    torch.manual_seed(0)
    return HRM(HRMConfig(**{**vars(SIZES), **changes})).eval()


def tokens(num_rows: int) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(1, 6, (num_rows, 16)))


def ids(num_rows: int) -> Tensor:
    return torch.zeros(num_rows, dtype=torch.int64)


def carry_of(value: float) -> Carry:
    return Carry(torch.full((2, 17, 48), value), torch.full((2, 17, 48), value))


def learn(output: SegmentOutput) -> None:
    output.logits_BTV.square().sum().backward()


def has_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


def test_rows_do_not_see_each_other() -> None:
    model = fresh_model()
    tokens_BT = tokens(3)
    with torch.no_grad():
        together = model.segment(model.start(3), tokens_BT, ids(3)).logits_BTV
        alone = model.segment(model.start(1), tokens_BT[1:2], ids(1)).logits_BTV
    assert torch.allclose(together[1:2], alone, atol=1e-5)


def test_garbage_of_a_stale_row_does_not_reach_a_fresh_one() -> None:
    model = fresh_model()
    is_fresh_B = torch.tensor([True, False])
    carry = carry_of(float("nan")).where(is_fresh_B, model.start(2))
    assert torch.equal(carry.z_high_BND[0], model.start(1).z_high_BND[0])
    assert carry.z_high_BND[1].isnan().all()


def test_gradients_pass_the_last_call_of_each_level_and_no_carry() -> None:
    model = fresh_model()
    start = model.start(2)
    z_high_BND = start.z_high_BND.clone().requires_grad_()
    z_low_BND = start.z_low_BND.clone().requires_grad_()
    carry = Carry(z_high_BND, z_low_BND)
    output = model.segment(carry, tokens(2), ids(2))
    learn(output)
    assert carry.z_high_BND.grad is None
    assert not output.carry.z_low_BND.requires_grad
    for level in model.levels:
        assert all(map(has_gradient, level.parameters()))


@pytest.mark.parametrize("more", [{"positions": "rope"}, {"blocks": "mixer", "positions": "none"}])
def test_gradients_of_a_trm_pass_the_whole_last_cycle_and_no_other(more: dict[str, Any]) -> None:
    model = fresh_model(**TRM, **more, high_cycles=3, low_cycles=3)
    one_cycle = fresh_model(**TRM, **more, high_cycles=1, low_cycles=3)
    one_cycle.load_state_dict(model.state_dict())
    carry = model.start(2)
    vector_BE = torch.zeros(2, 48)
    learn(model.think(carry, tokens(2), vector_BE))
    for _ in range(2):
        carry = one_cycle.think(carry, tokens(2), vector_BE).carry.detach()
    learn(one_cycle.think(carry, tokens(2), vector_BE))
    for name, parameter in model.low_level.named_parameters():
        expected = one_cycle.low_level.get_parameter(name).grad
        assert parameter.grad is not None
        assert expected is not None
        assert torch.equal(parameter.grad, expected)
    assert not any("high_level" in name for name in model.state_dict())


def test_the_transformer_ignores_its_carry_and_passes_it_on() -> None:
    model = fresh_model(**TRANSFORMER)
    output = model.segment(carry_of(float("nan")), tokens(2), ids(2))
    from_start = model.segment(model.start(2), tokens(2), ids(2))
    assert torch.equal(output.logits_BTV, from_start.logits_BTV)
    assert torch.equal(output.q_halt_B, from_start.q_halt_B)
    assert torch.equal(from_start.carry.z_high_BND, model.start(2).z_high_BND)


def test_every_block_of_the_transformer_learns() -> None:
    model = fresh_model(**TRANSFORMER, high_layers=2, low_layers=3)
    learn(model.segment(model.start(2), tokens(2), ids(2)))
    for name, parameter in model.named_parameters():
        assert "q_head" in name or has_gradient(parameter)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({**TRM, "high_layers": 3}, "set them alike"),
        ({**TRM, "puzzle_vector_size": 800}, "a puzzle vector of 800 values does not fit"),
        ({**TRM, "puzzle_vector_size": 0}, "set puzzle_positions=0"),
        ({**TRANSFORMER, "max_segments": 16}, "set max_segments=1"),
        ({"arch": "mlp"}, "choose 'hrm'"),
    ],
)
def test_sizes_that_an_architecture_cannot_have_are_rejected(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        fresh_model(**changes)


@pytest.mark.parametrize(
    "change",
    [{"positions": "rope", "high_layers": 2}, TRANSFORMER, TRM, {**TRM, "blocks": "mixer"}],
)
def test_halting_alone_is_that_of_the_whole_segment(change: dict[str, Any]) -> None:
    model = fresh_model(**change)
    torch.nn.init.normal_(model.q_head.weight)
    vector_BE = torch.randn(3, 48)
    carry = model.think(model.start(3), tokens(3), vector_BE).carry.detach()
    whole = model.think(carry, tokens(3), vector_BE)
    q_halt_B, q_continue_B = model.halting(carry, tokens(3), vector_BE)
    assert torch.allclose(q_halt_B, whole.q_halt_B, atol=1e-4)
    assert torch.allclose(q_continue_B, whole.q_continue_B, atol=1e-4)
    assert not q_halt_B.requires_grad
