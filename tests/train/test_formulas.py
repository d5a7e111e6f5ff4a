"""Optimisers, schedule and losses against their definitions, by plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from hrm_model.hrm import Carry, SegmentOutput
from hrm_puzzles.data.datasets import IGNORE
from hrm_train.batches import Progress
from hrm_train.optim import OPTIMISERS, AdamATan2, AdamW, Average, step_puzzle_table
from hrm_train.recipe import Recipe
from hrm_train.window import answer_loss_B, log_stablemax, segment_loss


def test_adam_atan2_follows_its_formula() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser = AdamATan2([weight], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5)
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(([0.5, -1.0], [0.0, 3.0], [-2.0, 0.25]), start=1):
        weight.grad = torch.tensor(gradient)
        optimiser.step()
        g = np.array(gradient)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        w = w * (1 - 0.1 * 0.5) - 0.1 / (1 - 0.9**step) * np.arctan2(
            m, np.sqrt(v) / math.sqrt(1 - 0.95**step)
        )
    assert np.allclose(weight.detach().numpy(), w, atol=1e-6)


GRADIENTS = ([0.5, -1.0], [0.0, 3.0], [-2.0, 0.25])


def test_adamw_is_pytorchs_own() -> None:
    ours, theirs = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    optimiser = AdamW([ours], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5)
    reference = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5)
    for gradient in GRADIENTS:
        ours.grad, theirs.grad = torch.tensor(gradient), torch.tensor(gradient)
        optimiser.step()
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", OPTIMISERS.values())
def test_an_update_that_is_not_kept_changes_nothing(kind: type[AdamATan2]) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser = kind([weight], lr=0.1, weight_decay=0.5)
    for keep in (torch.ones(()), torch.zeros(())):
        before = [tensor.clone() for tensor in (weight, *optimiser.exp_avg, *optimiser.exp_avg_sq)]
        weight.grad = torch.ones(2) * keep
        optimiser.step(keep=keep)
        after = [weight, *optimiser.exp_avg, *optimiser.exp_avg_sq]
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True)) == (keep == 0)


def test_only_touched_puzzle_rows_move_and_by_the_sign_of_their_summed_gradient() -> None:
    table = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    gradient = torch.tensor([[1.0, 0.0], [-3.0, 0.0], [5.0, -1.0]])
    step_puzzle_table(table, torch.tensor([2, 2, 0]), gradient, lr=0.1, decay=0.5)
    assert torch.allclose(
        table, torch.tensor([[0.95 - 0.1, 0.95 + 0.1], [2.0, 2.0], [2.85 + 0.1, 2.85]])
    )


@pytest.mark.parametrize(
    ("samples", "share"), [(0, 0.0), (50, 0.5), (100, 1.0), (600, 0.55), (1100, 0.1), (5000, 0.1)]
)
def test_the_rate_warms_up_then_falls_on_a_cosine(samples: int, share: float) -> None:
    recipe = Recipe(total_samples=1100, warmup_samples=100, lr_min_ratio=0.1)
    assert recipe.rate_at(samples) == pytest.approx(share)


def test_the_average_follows_the_weights() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = Average(layer, decay=0.5)
    nn.init.ones_(layer.weight)
    average.update(layer, step=1_000)
    assert float(average.state["weight"]) == 0.5


def test_stablemax_matches_its_definition() -> None:
    # s(1) = 2, s(0) = 1, s(-1) = 1/2, summing to 3.5
    found = log_stablemax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)).exp()
    assert torch.allclose(found, torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64) / 3.5)


@pytest.mark.parametrize("kind", ["softmax", "stablemax"])
def test_ignored_cells_do_not_count(kind: str) -> None:
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[2, IGNORE, 4]])
    without = answer_loss_B(logits[:, [0, 2]], labels[:, [0, 2]], kind)  # type: ignore[arg-type]
    assert torch.allclose(answer_loss_B(logits, labels, kind), without)  # type: ignore[arg-type]


def test_halting_learns_whether_the_answer_is_exact() -> None:
    logits = torch.full((2, 2, 3), -9.0)
    logits[0, :, 1] = logits[1, 0, 1] = logits[1, 1, 2] = 9.0
    labels = torch.ones(2, 2, dtype=torch.int64)
    q, carry = torch.tensor([3.0, 3.0]), Carry(logits, logits)
    loss, answer_loss, right_BT = segment_loss(
        SegmentOutput(carry, logits, q, q), labels, None, Recipe()
    )
    assert right_BT.tolist() == [[True, True], [True, False]]
    assert answer_loss == answer_loss_B(logits, labels, "softmax").sum()
    halting = 2 * (loss - answer_loss)
    assert float(halting) == pytest.approx(math.log(1 + math.exp(-3)) + math.log(1 + math.exp(3)))


def test_the_curriculum_falls_only_while_puzzles_are_solved() -> None:
    progress = Progress(curriculum_level=10, curriculum_upcoming=10)
    for _ in range(200):
        progress.take_in(num_solved=4, num_finished=8, target=0.6)
    assert progress.curriculum_level == 10
    for _ in range(2000):
        progress.take_in(num_solved=8, num_finished=8, target=0.6)
    assert progress.curriculum_level == 0
