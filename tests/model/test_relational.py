"""Laws of relational blocks: what the puzzle cannot tell apart, the model cannot either."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_tools import relational_sizes

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.geometry import on_board, widened
from hrm_model.hrm import HRM, SegmentOutput
from hrm_puzzles import registry
from hrm_puzzles.grid.board import GridSymmetry
from hrm_puzzles.puzzle import RIGHT

CHECKPOINTS = Path(__file__).parents[2] / "model" / "checkpoints"
EXACT = 1e-5  # sums in another order
NUM_SEGMENTS = 3


def fresh_model(puzzle: str, **changes: Any) -> HRM:
    torch.manual_seed(0)
    depth = dict.fromkeys(("high_cycles", "low_cycles", "high_layers", "low_layers"), 1)
    model = HRM(HRMConfig(**{**relational_sizes(puzzle), **depth, **changes}))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "bias" in name or "q_head" in name:
                weights.normal_()
    return model.eval()


@torch.no_grad()
def thought(model: HRM, tokens_BT: torch.Tensor) -> SegmentOutput:
    ids_B = torch.zeros(len(tokens_BT), dtype=torch.int64)
    output = model.segment(model.start(len(tokens_BT)), tokens_BT, ids_B)
    for _ in range(NUM_SEGMENTS - 1):
        output = model.segment(output.carry, tokens_BT, ids_B)
    return output


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["sudoku-6x6", "sudoku"])
def test_digits_lines_bands_and_transposition_change_nothing_but_places(
    name: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    puzzle = registry.get(name)
    model = fresh_model(name)
    symmetry = puzzle.symmetry(rng)
    assert isinstance(symmetry, GridSymmetry)
    tokens_BT = rng.integers(1, puzzle.vocab_size, (2, puzzle.seq_len))
    plain = thought(model, torch.from_numpy(tokens_BT))
    moved = thought(model, torch.from_numpy(symmetry.apply(tokens_BT)))
    relabeled_BTV = moved.logits_BTV[..., symmetry.relabel_V]
    back_BTV = relabeled_BTV[:, np.argsort(symmetry.source_T)]
    assert torch.allclose(back_BTV, plain.logits_BTV, atol=EXACT)
    assert torch.allclose(moved.q_halt_B, plain.q_halt_B, atol=EXACT)
    assert plain.logits_BTV.std() > 0.1


def test_weights_of_a_grid_do_not_know_its_size() -> None:
    """Inside a larger board a cell that is out of the edge's reach answers as it did."""
    small = fresh_model("maze-8x8")
    large = fresh_model("maze-10x10")
    large.load_state_dict(small.state_dict())
    tokens_BRC = random_tokens(10, 10)
    on_large = thought(large, tokens_BRC.flatten(1)).logits_BTV
    on_small = thought(small, tokens_BRC[:, :8, :8].flatten(1)).logits_BTV
    wide = on_large.unflatten(1, (10, 10))
    narrow = on_small.unflatten(1, (8, 8))
    inside = slice(8 - 2 * NUM_SEGMENTS)
    assert torch.allclose(wide[:, inside, inside], narrow[:, inside, inside], atol=EXACT)
    assert not torch.allclose(wide[:, 7, 7], narrow[:, 7, 7], atol=0.01)


def random_tokens(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 6, (2, *shape), generator=generator)


@pytest.mark.parametrize(
    ("puzzle", "random_start"), [("maze-8x8", False), ("sudoku-4x4", False), ("sudoku-4x4", True)]
)
def test_a_wider_model_answers_alike_and_every_new_channel_learns(
    puzzle: str, random_start: bool
) -> None:
    narrow = fresh_model(puzzle, random_start=random_start)
    width = 2 * narrow.config.hidden_size
    wide = fresh_model(puzzle, random_start=random_start, hidden_size=width)
    wide.load_state_dict(widened(narrow, wide))
    tokens_BT = random_tokens(wide.config.seq_len)
    expected = thought(narrow, tokens_BT)
    found = thought(wide, tokens_BT)
    gap = (found.logits_BTV - expected.logits_BTV).std()
    assert 0 < gap < 0.05 * expected.logits_BTV.std()
    assert torch.allclose(found.q_halt_B, expected.q_halt_B, atol=0.2)
    ids_B = torch.zeros(2, dtype=torch.int64)
    output = wide.segment(wide.start(2), tokens_BT, ids_B)
    output.logits_BTV.square().sum().backward()
    for block in wide.high_level.layers:
        gradient = block.out_proj.weight.grad
        assert gradient is not None
        assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    ("puzzle", "sizes"), [("maze-8x8", {"hidden_size": 8}), ("arc-7x7", {"hidden_size": 480})]
)
def test_weights_that_cannot_be_widened_are_refused(puzzle: str, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="only weights of a grid or"):
        widened(fresh_model(puzzle), fresh_model(puzzle, **sizes))


@pytest.mark.parametrize("seed", range(2))
def test_a_task_in_other_colors_is_the_same_task(seed: int) -> None:
    """Its vector's parts are exchanged alike. Pad, end and black keep their places."""
    rng = np.random.default_rng(seed)
    model = fresh_model("arc-7x7", num_puzzle_ids=2)
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


def test_with_a_random_start_a_symmetric_copy_is_another_attempt() -> None:
    """Also on another board, where the starts are drawn anew, always the same."""
    model = fresh_model("sudoku-4x4", random_start=True)
    puzzle = registry.get("sudoku-6x6")
    tokens_BT = torch.ones((1, 16), dtype=torch.int64)
    assert thought(model, tokens_BT).logits_BTV[0, :, 2:].std(0).min() > 0.01
    once = on_board(model, puzzle)
    twice = on_board(model, puzzle)
    assert torch.equal(once.high_init, twice.high_init)
    assert once.start(2).z_low_BND.shape == (2, 36, 96)
    assert torch.equal(on_board(model, registry.get("sudoku-4x4")).low_init, model.low_init)


@torch.no_grad()
def test_weights_of_9x9_sudokus_solve_boards_of_12x12() -> None:
    shipped, _ = checkpoint.load(CHECKPOINTS / "sudoku")
    puzzle = registry.get("sudoku-12x12")
    model = on_board(shipped, puzzle).eval()
    examples = [puzzle.generate(np.random.default_rng(seed), "easy") for seed in range(4)]
    inputs_BT = np.stack([puzzle.encode(example.question) for example in examples])
    tokens_BT = torch.from_numpy(inputs_BT).long()
    ids_B = torch.zeros(len(examples), dtype=torch.int64)
    carry = model.start(len(examples))
    is_right_B = np.zeros(len(examples), bool)
    for _ in range(16):  # the mean is 3.4 segments
        output = model.segment(carry, tokens_BT, ids_B)
        carry = output.carry
        answers_BT = output.logits_BTV.argmax(-1).numpy()
        is_right_B |= puzzle.check_BT(inputs_BT, answers_BT) == RIGHT
    assert is_right_B.sum() >= 3


def test_gradients_pass_every_cycle() -> None:
    model = fresh_model("maze-8x8", high_cycles=3)
    carry = model.start(1)
    carry = carry._replace(z_low_BND=carry.z_low_BND.clone().requires_grad_())
    tokens_BT = torch.ones((1, 64), dtype=torch.int64)
    output = model.think(carry, tokens_BT, torch.zeros(1, 0))
    output.logits_BTV.square().sum().backward()
    assert carry.z_low_BND.grad is not None
    assert carry.z_low_BND.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"board": (3, 3)}, "use the puzzle's own geometry"),
        ({"hidden_size": 90}, "does not divide among 4 symbols"),
        ({"positions": "learned"}, "keep the defaults of arch and positions"),
        ({"puzzle_vector_size": 16}, "set puzzle_vector_size=0"),
        ({"num_fixed": 4}, "4 of them fixed"),
        ({"board": (4, 4)}, "choose 1 symbol or all"),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fresh_model("sudoku-4x4", **change)
