"""Optimizers, schedule and losses against their definitions, by plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from export_tools import relational_sizes
from torch import nn

from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import Carry, SegmentOutput
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import IGNORE
from hrm_train.optim import AdamATan2, AdamW, Average, Lion, Optimizer, step_puzzle_table
from hrm_train.recipe import Recipe
from hrm_train.window import (
    HintTensors,
    Slots,
    WindowLoss,
    answer_loss_B,
    log_stablemax,
    segment_loss,
    window_loss,
)

GRADIENTS = ([0.5, -1.0], [0.0, 3.0], [-2.0, 0.25])


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, -2.0]))


def test_adam_atan2_follows_its_formula():
    weight = parameter()
    optimizer = AdamATan2([weight], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5)
    w = np.array([1.0, -2.0])
    m = np.zeros(2)
    v = np.zeros(2)
    for step, gradient in enumerate(GRADIENTS, start=1):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        g = np.array(gradient)
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g * g
        spread = np.sqrt(v / (1 - 0.95**step))
        rate = 0.1 / (1 - 0.9**step)
        decayed = w * (1 - 0.1 * 0.5)
        w = decayed - rate * np.arctan2(m, spread)
    assert np.allclose(weight.detach().numpy(), w, atol=1e-6)


@pytest.mark.parametrize(("kind", "package"), [(AdamW, "torch.optim"), (Lion, "lion_pytorch")])
def test_an_optimizer_of_a_package_moves_as_it_does(kind: type[Optimizer], package: str):
    module = pytest.importorskip(package)
    ours = parameter()
    theirs = parameter()
    settings = {"betas": (0.9, 0.95), "weight_decay": 0.5}
    optimizer = kind([ours], lr=0.2, **settings)
    reference = getattr(module, kind.__name__)([theirs], lr=0.1, **settings)
    for gradient in GRADIENTS:
        ours.grad = torch.tensor(gradient)
        theirs.grad = torch.tensor(gradient)
        optimizer.step(rate=0.5)
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-6)
    (moment,) = optimizer.moments["exp_avg"]
    assert torch.equal(moment, reference.state[theirs]["exp_avg"])


def test_only_touched_puzzle_rows_move_and_by_the_sign_of_their_summed_gradient():
    table = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    gradient = torch.tensor([[1.0, 0.0], [-3.0, 0.0], [5.0, -1.0]])
    step_puzzle_table(table, torch.tensor([2, 2, 0]), gradient, lr=0.1, decay=0.5)
    expected = torch.tensor([[0.95 - 0.1, 0.95 + 0.1], [2.0, 2.0], [2.85 + 0.1, 2.85]])
    assert torch.allclose(table, expected)


@pytest.mark.parametrize(
    ("samples", "share"), [(0, 0.0), (50, 0.5), (100, 1.0), (600, 0.55), (1100, 0.1), (5000, 0.1)]
)
def test_the_rate_warms_up_then_falls_on_a_cosine(samples: int, share: float):
    recipe = Recipe(total_samples=1100, warmup_samples=100, lr_min_ratio=0.1)
    assert recipe.rate_at(samples) == pytest.approx(share)


def test_the_average_follows_the_weights():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = Average(layer, decay=0.5)
    nn.init.ones_(layer.weight)
    average.update(layer, step=1_000)
    assert float(average.state["weight"]) == 0.5


def test_stablemax_matches_its_definition():
    # s(1) = 2, s(0) = 1, s(-1) = 1/2, summing to 3.5
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    expected = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64) / 3.5
    assert torch.allclose(log_stablemax(logits).exp(), expected)


@pytest.mark.parametrize("kind", ["softmax", "stablemax"])
def test_ignored_cells_do_not_count(kind: str):
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[2, IGNORE, 4]])
    without = answer_loss_B(logits[:, [0, 2]], labels[:, [0, 2]], kind)
    assert torch.allclose(answer_loss_B(logits, labels, kind), without)


def test_halting_learns_whether_the_answer_is_exact():
    answers = torch.tensor([[1, 1], [1, 2]])
    labels = torch.ones_like(answers)
    logits = 18.0 * nn.functional.one_hot(answers, 3) - 9.0
    q = torch.tensor([3.0, 3.0])
    output = SegmentOutput(Carry(logits, logits), logits, q, q)
    loss, answer_loss, right_BT = segment_loss(output, labels, None, Recipe())
    assert right_BT.tolist() == [[True, True], [True, False]]
    assert answer_loss == answer_loss_B(logits, labels, "softmax").sum()
    halting = 2 * (loss - answer_loss)
    of_the_right_one = math.log(1 + math.exp(-3))
    of_the_wrong_one = math.log(1 + math.exp(3))
    assert float(halting) == pytest.approx(of_the_right_one + of_the_wrong_one)


PUZZLE = registry.get("maze-8x8")
RECIPE = Recipe(window=2, loss="softmax", halt_weight=0.0)
CYCLES = 3
LATER = 1 + RECIPE.window * CYCLES
EXAMPLE = PUZZLE.generate(np.random.default_rng(0), "hard")
TOKENS_BT = torch.from_numpy(PUZZLE.encode(EXAMPLE.question)[None])
LABELS_BT = torch.from_numpy(PUZZLE.encode(EXAMPLE.answer)[None])
NUM_HINTS = PUZZLE.num_hints
KINDS_BT = torch.arange(PUZZLE.seq_len, dtype=torch.int32)[None] % NUM_HINTS


def learnt(labels_BT: torch.Tensor, hints: HintTensors) -> WindowLoss:
    torch.manual_seed(0)
    sizes = relational_sizes(PUZZLE.name)
    model = model_of(HRMConfig(**sizes, num_hints=NUM_HINTS, high_cycles=CYCLES))
    slots = Slots.empty(model, 1, torch.device("cpu"))
    slots.tokens_BT = TOKENS_BT
    slots.labels_BT = labels_BT
    return window_loss(model, slots, torch.zeros(1, 0), RECIPE, 8, hints)


def at(cycles: int) -> torch.Tensor:
    return torch.full_like(KINDS_BT, cycles)


def loss_after(cycles: int) -> torch.Tensor:
    """The loss if every hint and every answer arrives after that many cycles."""
    return learnt(LABELS_BT, HintTensors(KINDS_BT, at(cycles), at(cycles))).loss


def test_what_cannot_be_known_yet_is_learnt_as_unknown_and_as_asked():
    late = learnt(LABELS_BT, HintTensors(KINDS_BT, at(LATER), at(LATER)))
    nothing = learnt(TOKENS_BT, HintTensors(torch.zeros_like(KINDS_BT), at(0), at(0)))
    assert torch.equal(late.loss, nothing.loss)
    assert torch.equal(late.answer_loss, nothing.answer_loss)


def test_news_comes_by_one_position_in_a_cycle():
    first = loss_after(0)
    last = loss_after(LATER)
    losses = [loss_after(cycles) for cycles in range(1, LATER)]
    assert losses[:CYCLES] == [first] * CYCLES  # known in the first segment
    assert losses[CYCLES:] == [losses[-1]] * CYCLES  # and in the second alone
    assert len({loss.item() for loss in (first, losses[-1], last)}) == 3
