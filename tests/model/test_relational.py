"""Laws of relational blocks: what the puzzle cannot tell apart, the model cannot either.

Shapes: B rows, T cells, V vocabulary.
"""

import numpy as np
import pytest
import torch
from export_tools import relational_sizes

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, SegmentOutput
from hrm_puzzles import registry
from hrm_puzzles.grid.board import GridSymmetry

EXACT = 1e-5  # sums in another order
NUM_SEGMENTS = 3


def fresh_model(puzzle: str, **changes: object) -> HRM:
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "sudoku"])
def test_digits_lines_bands_and_transposition_change_nothing_but_places(name: str, seed: int) -> None:
    rng, puzzle = np.random.default_rng(seed), registry.get(name)
    model, symmetry = fresh_model(name), puzzle.symmetry(rng)
    assert isinstance(symmetry, GridSymmetry)
    tokens_BT = rng.integers(1, puzzle.vocab_size, (2, puzzle.seq_len))
    plain = thought(model, torch.from_numpy(tokens_BT))
    moved = thought(model, torch.from_numpy(symmetry.apply(tokens_BT)))
    back_BTV = moved.logits_BTV[..., symmetry.relabel_V][:, np.argsort(symmetry.source_T)]
    assert torch.allclose(back_BTV, plain.logits_BTV, atol=EXACT)
    assert torch.allclose(moved.q_halt_B, plain.q_halt_B, atol=EXACT)
    assert plain.logits_BTV.std() > 0.1


def test_weights_of_a_grid_do_not_know_its_size() -> None:
    """Inside a larger board a cell that is out of the edge's reach answers as it did."""
    small, large = fresh_model("maze-8x8"), fresh_model("maze-10x10")
    large.load_state_dict(small.state_dict())
    tokens_BRC = torch.randint(1, 6, (2, 10, 10), generator=torch.Generator().manual_seed(0))
    wide = thought(large, tokens_BRC.flatten(1)).logits_BTV.unflatten(1, (10, 10))
    narrow = thought(small, tokens_BRC[:, :8, :8].flatten(1)).logits_BTV.unflatten(1, (8, 8))
    inside = 8 - 2 * NUM_SEGMENTS
    assert torch.allclose(wide[:, :inside, :inside], narrow[:, :inside, :inside], atol=EXACT)
    assert not torch.allclose(wide[:, 7, 7], narrow[:, 7, 7], atol=0.01)


def test_gradients_pass_every_cycle() -> None:
    model = fresh_model("maze-8x8", high_cycles=3)
    carry = model.start(1)
    carry = carry._replace(z_low_BND=carry.z_low_BND.clone().requires_grad_())
    model.think(carry, torch.ones((1, 64), dtype=torch.int64), torch.zeros(1, 0)).logits_BTV.square().sum().backward()
    assert carry.z_low_BND.grad is not None
    assert carry.z_low_BND.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"board": (3, 3)}, "take the puzzle's own geometry"),
        ({"hidden_size": 90}, "does not share out among 4 symbols"),
        ({"positions": "learned"}, "leave arch and positions as they are"),
        ({"puzzle_vector_size": 16}, "set puzzle_vector_size=0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fresh_model("sudoku-4x4", **change)
