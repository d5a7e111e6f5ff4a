"""A position learns a hint once its information can have arrived, and "unknown" until then."""

import numpy as np
import torch
from export_tools import relational_sizes

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_train.recipe import Recipe
from hrm_train.window import HintTensors, Slots, WindowLoss, window_loss

PUZZLE = registry.get("maze-8x8")
RECIPE = Recipe(window=2, loss="softmax", halt_weight=0.0)
CYCLES = 3
LATER = 1 + RECIPE.window * CYCLES
EXAMPLE = PUZZLE.generate(np.random.default_rng(0), "hard")
TOKENS_BT = torch.from_numpy(PUZZLE.encode(EXAMPLE.question)[None])
LABELS_BT = torch.from_numpy(PUZZLE.encode(EXAMPLE.answer)[None])
NUM_HINTS: int = PUZZLE.num_hints  # type: ignore[attr-defined]
KINDS_BT = torch.arange(PUZZLE.seq_len, dtype=torch.int32)[None] % NUM_HINTS


def learnt(labels_BT: torch.Tensor, hints: HintTensors) -> WindowLoss:
    torch.manual_seed(0)
    sizes = relational_sizes(PUZZLE.name)
    model = HRM(HRMConfig(**sizes, num_hints=NUM_HINTS, high_cycles=CYCLES))
    slots = Slots.empty(model, 1, torch.device("cpu"))
    slots.tokens_BT = TOKENS_BT
    slots.labels_BT = labels_BT
    return window_loss(model, slots, torch.zeros(1, 0), RECIPE, 8, hints)


def at(cycles: int) -> torch.Tensor:
    return torch.full_like(KINDS_BT, cycles)


def loss_after(cycles: int) -> torch.Tensor:
    """The loss if every hint and every answer arrives after that many cycles."""
    return learnt(LABELS_BT, HintTensors(KINDS_BT, at(cycles), at(cycles))).loss


def test_what_cannot_be_known_yet_is_learnt_as_unknown_and_as_asked() -> None:
    late = learnt(LABELS_BT, HintTensors(KINDS_BT, at(LATER), at(LATER)))
    nothing = learnt(TOKENS_BT, HintTensors(torch.zeros_like(KINDS_BT), at(0), at(0)))
    assert torch.equal(late.loss, nothing.loss)
    assert torch.equal(late.answer_loss, nothing.answer_loss)


def test_news_comes_by_one_position_in_a_cycle() -> None:
    first = loss_after(0)
    last = loss_after(LATER)
    losses = [loss_after(cycles) for cycles in range(1, LATER)]
    assert losses[:CYCLES] == [first] * CYCLES  # known in the first segment
    assert losses[CYCLES:] == [losses[-1]] * CYCLES  # and in the second alone
    assert len({loss.item() for loss in (first, losses[-1], last)}) == 3


def test_an_answer_is_judged_by_its_labels_whatever_is_shown_of_them() -> None:
    hidden = HintTensors(KINDS_BT, at(0), at(LATER))
    shown = hidden._replace(answer_after_BT=at(0))
    assert torch.equal(learnt(LABELS_BT, hidden).cells_B, learnt(LABELS_BT, shown).cells_B)
