"""Laws of one segment, and of the start that knows the puzzle's geometry."""

import numpy as np
import pytest
import torch

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry
from hrm_puzzles import registry

PUZZLE = registry.get("sudoku-4x4")
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


def fresh_model(**changes: object) -> HRM:
    torch.manual_seed(0)
    return HRM(HRMConfig(**{**vars(SIZES), **changes})).eval()


def tokens(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 6, (num_rows, 16)))


def test_rows_do_not_see_each_other() -> None:
    model, tokens_BT = fresh_model(), tokens(3)
    ids_B = torch.zeros(3, dtype=torch.int64)
    with torch.no_grad():
        together = model.segment(model.start(3), tokens_BT, ids_B).logits_BTV
        alone = model.segment(model.start(1), tokens_BT[1:2], ids_B[:1]).logits_BTV
    assert torch.allclose(together[1:2], alone, atol=1e-5)


def test_garbage_of_a_stale_row_does_not_reach_a_fresh_one() -> None:
    model = fresh_model()
    garbage = Carry(*(torch.full((2, 17, 48), float("nan")) for _ in range(2)))
    carry = garbage.where(torch.tensor([True, False]), model.start(2))
    assert torch.equal(carry.z_high_BND[0], model.start(1).z_high_BND[0])
    assert carry.z_high_BND[1].isnan().all()


def test_gradients_pass_the_last_call_of_each_level_and_no_carry() -> None:
    model = fresh_model()
    carry = Carry(*(z.clone().requires_grad_() for z in model.start(2)))
    output = model.segment(carry, tokens(2), torch.zeros(2, dtype=torch.int64))
    output.logits_BTV.square().sum().backward()
    assert carry.z_high_BND.grad is None
    assert not output.carry.z_low_BND.requires_grad
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for n, p in model.named_parameters()
        if "level" in n
    )


@pytest.mark.parametrize("more", [{"positions": "rope"}, {"blocks": "mixer", "positions": "none"}])
def test_gradients_of_a_trm_pass_the_whole_last_cycle_and_no_other(more: dict[str, object]) -> None:
    model, last_cycle = (
        fresh_model(**TRM, **more, high_cycles=cycles, low_cycles=3) for cycles in (3, 1)
    )
    last_cycle.load_state_dict(model.state_dict())
    carry, vector_BE = model.start(2), torch.zeros(2, 48)
    model.think(carry, tokens(2), vector_BE).logits_BTV.square().sum().backward()
    for _ in range(2):
        carry = last_cycle.think(carry, tokens(2), vector_BE).carry.detach()
    last_cycle.think(carry, tokens(2), vector_BE).logits_BTV.square().sum().backward()
    pairs = zip(model.low_level.parameters(), last_cycle.low_level.parameters(), strict=True)
    assert all(one.grad is not None and torch.equal(one.grad, other.grad) for one, other in pairs)
    assert not [name for name in model.state_dict() if "high_level" in name]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"high_layers": 3}, "set them alike"),
        (
            {"puzzle_vector_size": 800},
            "a puzzle vector of 800 values does not fit puzzle_positions 16 of 48",
        ),
        ({"puzzle_vector_size": 0}, "set puzzle_positions=0"),
    ],
)
def test_a_trm_that_cannot_be_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fresh_model(**{**TRM, **change})


def transformer(**changes: object) -> HRM:
    return fresh_model(**{"arch": "transformer", "max_segments": 1, **changes})


def test_the_transformer_has_the_parameters_of_the_hrm() -> None:
    models = (fresh_model(), transformer())
    shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in models]
    assert shapes[0] == shapes[1]


def test_the_transformer_answers_alike_whatever_its_carry_and_hands_it_on() -> None:
    model, ids_B = transformer(), torch.zeros(2, dtype=torch.int64)
    carry = Carry(*(torch.full((2, 17, 48), float("nan")) for _ in range(2)))
    output, from_start = (
        model.segment(carry, tokens(2), ids_B),
        model.segment(model.start(2), tokens(2), ids_B),
    )
    assert torch.equal(output.logits_BTV, from_start.logits_BTV)
    assert torch.equal(output.q_halt_B, from_start.q_halt_B)
    assert torch.equal(from_start.carry.z_high_BND, model.start(2).z_high_BND)


def test_every_block_of_the_transformer_learns() -> None:
    model = transformer(high_layers=2, low_layers=3)
    model.segment(
        model.start(2), tokens(2), torch.zeros(2, dtype=torch.int64)
    ).logits_BTV.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for n, p in model.named_parameters()
        if "q_head" not in n
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"max_segments": 16}, "set max_segments=1"), ({"arch": "mlp"}, "choose 'hrm'")],
)
def test_an_architecture_that_cannot_be_is_refused(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        transformer(**change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"positions": "rope", "high_layers": 2},
        {"arch": "transformer", "max_segments": 1},
        TRM,
        {**TRM, "blocks": "mixer"},
    ],
)
def test_halting_alone_is_that_of_the_whole_segment(change: dict[str, object]) -> None:
    model = fresh_model(**change)
    torch.nn.init.normal_(model.q_head.weight)
    vector_BE = torch.randn(3, 48)
    carry = model.think(model.start(3), tokens(3), vector_BE).carry.detach()
    whole = model.think(carry, tokens(3), vector_BE)
    q_halt_B, q_continue_B = model.halting(carry, tokens(3), vector_BE)
    assert torch.allclose(q_halt_B, whole.q_halt_B, atol=1e-4)
    assert torch.allclose(q_continue_B, whole.q_continue_B, atol=1e-4)
    assert not q_halt_B.requires_grad
