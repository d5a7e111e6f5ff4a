"""Laws of a network: rows, gradients, carry, halting, and symmetries of relational blocks."""

from typing import Any

import numpy as np
import pytest
import torch
from export_tools import relational_sizes
from files import ROOT
from torch import Tensor

from hrm_model import checkpoint, ops
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.geometry import on_board, widened
from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT

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
RELATIONAL = {**relational_sizes("sudoku-4x4"), "positions": "rope"}


def fresh_model(**changes: Any) -> HRM:
    torch.manual_seed(0)
    return model_of(HRMConfig(**{**vars(SIZES), **changes})).eval()


def random_tokens(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 6, (2, *shape), generator=generator)


def ids(num_rows: int) -> Tensor:
    return torch.zeros(num_rows, dtype=torch.int64)


def stale_carry() -> Carry:
    nothing_BND = torch.full((2, 17, 48), torch.nan)
    return Carry(nothing_BND, nothing_BND)


def learn(output: SegmentOutput) -> None:
    output.logits_BTV.square().sum().backward()


def has_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


def test_a_fresh_row_begins_anew_and_another_keeps_its_carry():
    model = fresh_model()
    is_fresh_B = torch.tensor([True, False])
    carry = stale_carry().where(is_fresh_B, model.start(2))
    assert torch.equal(carry.z_high_BND[0], model.start(1).z_high_BND[0])
    assert carry.z_high_BND[1].isnan().all()


def test_gradients_pass_the_last_call_of_each_level_and_no_carry():
    model = fresh_model()
    start = model.start(2)
    z_high_BND = start.z_high_BND.clone().requires_grad_()
    z_low_BND = start.z_low_BND.clone().requires_grad_()
    carry = Carry(z_high_BND, z_low_BND)
    output = model.segment(carry, random_tokens(16), ids(2))
    learn(output)
    assert carry.z_high_BND.grad is None
    assert not output.carry.z_low_BND.requires_grad
    for level in model.levels:
        assert all(map(has_gradient, level.parameters()))


@pytest.mark.parametrize("more", [{"positions": "rope"}, {"blocks": "mixer", "positions": "none"}])
def test_gradients_of_a_trm_pass_the_whole_last_cycle_and_no_other(more: dict[str, Any]):
    model = fresh_model(**TRM, **more, high_cycles=3, low_cycles=3)
    one_cycle = fresh_model(**TRM, **more, high_cycles=1, low_cycles=3)
    one_cycle.load_state_dict(model.state_dict())
    carry = model.start(2)
    vector_BE = torch.zeros(2, 48)
    learn(model.think(carry, random_tokens(16), vector_BE))
    for _ in range(2):
        carry = one_cycle.think(carry, random_tokens(16), vector_BE).carry.detach()
    learn(one_cycle.think(carry, random_tokens(16), vector_BE))
    for name, parameter in model.low_level.named_parameters():
        expected = one_cycle.low_level.get_parameter(name).grad
        assert torch.equal(parameter.grad, expected)
    assert not any("high_level" in name for name in model.state_dict())


def test_the_transformer_ignores_its_carry_and_every_block_learns():
    model = fresh_model(**TRANSFORMER)
    output = model.segment(stale_carry(), random_tokens(16), ids(2))
    from_start = model.segment(model.start(2), random_tokens(16), ids(2))
    assert torch.equal(output.logits_BTV, from_start.logits_BTV)
    assert torch.equal(output.q_halt_B, from_start.q_halt_B)
    assert torch.equal(from_start.carry.z_high_BND, model.start(2).z_high_BND)
    model = fresh_model(**TRANSFORMER, high_layers=2, low_layers=3)
    learn(model.segment(model.start(2), random_tokens(16), ids(2)))
    for name, parameter in model.named_parameters():
        assert "q_head" in name or has_gradient(parameter)


CHECKPOINTS = ROOT / "model" / "checkpoints"
EXACT = 1e-5  # sums in another order
NUM_SEGMENTS = 3


def relational_model(puzzle: str, **changes: Any) -> HRM:
    torch.manual_seed(0)
    depth = dict.fromkeys(("high_cycles", "low_cycles", "high_layers", "low_layers"), 1)
    model = model_of(HRMConfig(**{**relational_sizes(puzzle), **depth, **changes}))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "bias" in name or "q_head" in name:
                weights.normal_()
    return model.eval()


@torch.no_grad()
def thought(model: HRM, tokens_BT: torch.Tensor) -> SegmentOutput:
    carry = model.start(len(tokens_BT))
    for _ in range(NUM_SEGMENTS):
        output = model.segment(carry, tokens_BT, ids(len(tokens_BT)))
        carry = output.carry
    return output


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["sudoku-6x6", "sudoku"])
def test_digits_lines_bands_and_transposition_are_symmetries(name: str, seed: int):
    rng = np.random.default_rng(seed)
    puzzle = registry.get(name)
    model = relational_model(name)
    symmetry = puzzle.symmetry(rng)
    tokens_BT = rng.integers(1, puzzle.vocab_size, (2, puzzle.seq_len))
    plain = thought(model, torch.from_numpy(tokens_BT))
    moved = thought(model, torch.from_numpy(symmetry.apply(tokens_BT)))
    relabeled_BTV = moved.logits_BTV[..., symmetry.relabel_V]
    back_BTV = relabeled_BTV[:, np.argsort(symmetry.source_T)]
    assert torch.allclose(back_BTV, plain.logits_BTV, atol=EXACT)
    assert torch.allclose(moved.q_halt_B, plain.q_halt_B, atol=EXACT)
    assert plain.logits_BTV.std() > 0.1


def test_weights_of_a_grid_do_not_know_its_size():
    """Inside a larger board a cell that is out of the edge's reach answers as it did."""
    small = relational_model("maze-8x8")
    large = relational_model("maze-10x10")
    large.load_state_dict(small.state_dict())
    tokens_BRC = random_tokens(10, 10)
    on_large = thought(large, tokens_BRC.flatten(1)).logits_BTV
    on_small = thought(small, tokens_BRC[:, :8, :8].flatten(1)).logits_BTV
    wide = on_large.unflatten(1, (10, 10))
    narrow = on_small.unflatten(1, (8, 8))
    inside = slice(8 - 2 * NUM_SEGMENTS)
    assert torch.allclose(wide[:, inside, inside], narrow[:, inside, inside], atol=EXACT)
    assert not torch.allclose(wide[:, 7, 7], narrow[:, 7, 7], atol=0.01)


@pytest.mark.parametrize(
    ("puzzle", "random_start"), [("maze-8x8", False), ("sudoku-4x4", False), ("sudoku-4x4", True)]
)
def test_a_widened_model_answers_alike_and_learns(puzzle: str, random_start: bool):
    narrow = relational_model(puzzle, random_start=random_start)
    width = 2 * narrow.config.hidden_size
    wide = relational_model(puzzle, random_start=random_start, hidden_size=width)
    wide.load_state_dict(widened(narrow, wide))
    tokens_BT = random_tokens(wide.config.seq_len)
    expected = thought(narrow, tokens_BT)
    found = thought(wide, tokens_BT)
    gap = (found.logits_BTV - expected.logits_BTV).std()
    assert 0 < gap < 0.05 * expected.logits_BTV.std()
    assert torch.allclose(found.q_halt_B, expected.q_halt_B, atol=0.2)
    learn(wide.segment(wide.start(2), tokens_BT, ids(2)))
    for block in wide.high_level.layers:
        gradient = block.out_proj.weight.grad
        assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    ("puzzle", "sizes"), [("maze-8x8", {"hidden_size": 8}), ("arc-7x7", {"hidden_size": 480})]
)
def test_weights_that_cannot_be_widened_are_refused(puzzle: str, sizes: dict[str, int]):
    with pytest.raises(ValueError, match="only weights of a grid or"):
        widened(relational_model(puzzle), relational_model(puzzle, **sizes))


@pytest.mark.parametrize("seed", range(2))
def test_a_task_in_other_colors_is_the_same_task(seed: int):
    """Its vector's parts are exchanged alike. Pad, end and black keep their places."""
    rng = np.random.default_rng(seed)
    model = relational_model("arc-7x7", num_puzzle_ids=2)
    order_V = np.concatenate([[0, 1, 2], 3 + rng.permutation(9)])
    vector_SE = rng.standard_normal((12, 4)).astype(np.float32)
    moved_SE = np.empty_like(vector_SE)
    moved_SE[order_V] = vector_SE
    table_IE = np.stack([vector_SE.ravel(), moved_SE.ravel()])
    model.puzzle_table.copy_(torch.from_numpy(table_IE))
    tokens_BT = rng.integers(0, 12, (1, 49))
    both_BT = np.concatenate([tokens_BT, order_V[tokens_BT]])
    with torch.no_grad():
        output = model.segment(model.start(2), torch.from_numpy(both_BT), torch.arange(2))
    plain_TV, moved_TV = output.logits_BTV
    assert torch.allclose(moved_TV[:, order_V], plain_TV, atol=EXACT)
    assert plain_TV.std(1).min() > 0.001


def test_with_a_random_start_a_symmetric_copy_is_another_attempt():
    """Also on another board, where the starts are drawn anew, always the same."""
    model = relational_model("sudoku-4x4", random_start=True)
    puzzle = registry.get("sudoku-6x6")
    tokens_BT = torch.ones((1, 16), dtype=torch.int64)
    assert thought(model, tokens_BT).logits_BTV[0, :, 2:].std(0).min() > 0.01
    once = on_board(model, puzzle)
    twice = on_board(model, puzzle)
    assert torch.equal(once.high_init, twice.high_init)
    assert once.start(2).z_low_BND.shape == (2, 36, 96)
    assert torch.equal(on_board(model, registry.get("sudoku-4x4")).low_init, model.low_init)


@torch.no_grad()
def test_weights_of_9x9_sudokus_solve_boards_of_12x12():
    shipped, _ = checkpoint.load(CHECKPOINTS / "sudoku")
    puzzle = registry.get("sudoku-12x12")
    model = on_board(shipped, puzzle).eval()
    examples = [puzzle.generate(np.random.default_rng(seed), "easy") for seed in range(4)]
    inputs_BT = np.stack([puzzle.encode(example.question) for example in examples])
    tokens_BT = torch.from_numpy(inputs_BT).long()
    carry = model.start(4)
    is_right_B = np.zeros(len(examples), bool)
    for _ in range(16):  # the mean is 3.4 segments
        output = model.segment(carry, tokens_BT, ids(4))
        carry = output.carry
        answers_BT = output.logits_BTV.argmax(-1).numpy()
        is_right_B |= puzzle.check_BT(inputs_BT, answers_BT) == RIGHT
    assert is_right_B.sum() >= 3


def test_gradients_pass_every_cycle():
    model = relational_model("maze-8x8", high_cycles=3)
    carry = model.start(1)
    carry = carry._replace(z_low_BND=carry.z_low_BND.clone().requires_grad_())
    tokens_BT = torch.ones((1, 64), dtype=torch.int64)
    learn(model.think(carry, tokens_BT, torch.zeros(1, 0)))
    assert carry.z_low_BND.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({**TRM, "high_layers": 3}, "set them alike"),
        ({**TRM, "puzzle_vector_size": 0}, "set puzzle_positions=0"),
        ({**TRANSFORMER, "max_segments": 16}, "set max_segments=1"),
        ({"arch": "mlp"}, "choose 'hrm'"),
        ({**RELATIONAL, "board": (3, 3)}, "does not give 16 positions"),
        ({**RELATIONAL, "hidden_size": 90}, "does not divide among 4 symbols"),
        ({**RELATIONAL, "positions": "learned"}, "keep the defaults of arch and positions"),
        ({**RELATIONAL, "puzzle_vector_size": 16}, "set puzzle_vector_size=0"),
    ],
)
def test_sizes_that_cannot_be_are_rejected(changes: dict[str, Any], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        HRMConfig(**{**vars(SIZES), **changes})


EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""Sums in another order; bfloat16 keeps 8 bits."""
STEPS = {
    "residual_norm": lambda x, change: ops.residual_norm(x, change, EPS),
    "gated": lambda x, change: ops.gated(x + change),
}


def of(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The value, and the gradients of both inputs under random weights."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, 5, 16)
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    change = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(shape, generator=generator).to(dtype)
    y = STEPS[name](x, change)
    weighted = y * weight[..., : y.shape[-1]]
    weighted.float().sum().backward()
    return y.detach(), x.grad, change.grad


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_a_fused_step_and_its_gradients_are_those_of_the_formula_that_is_compiled(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    fused = of(name, dtype)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for found, expected in zip(fused, of(name, dtype), strict=True):
        assert found.dtype == dtype
        assert torch.allclose(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
