"""Hints are learnt when their news can have come, and until then the model learns that it knows nothing."""

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


def learnt(labels_BT: torch.Tensor, hints: HintTensors) -> WindowLoss:
    torch.manual_seed(0)
    sizes = relational_sizes(PUZZLE.name) | {"num_hints": PUZZLE.num_hints, "high_cycles": CYCLES}  # type: ignore[attr-defined]
    model = HRM(HRMConfig(**sizes))
    slots = Slots.empty(model, len(labels_BT), torch.device("cpu"))
    slots.tokens_BT, slots.labels_BT = TOKENS_BT, labels_BT
    return window_loss(model, slots, torch.zeros(len(labels_BT), 0), RECIPE, 8, hints)


EXAMPLE = PUZZLE.generate(np.random.default_rng(0), "hard")
TOKENS_BT, LABELS_BT = (torch.from_numpy(PUZZLE.encode(grid)[None]) for grid in (EXAMPLE.question, EXAMPLE.answer))
KINDS_BT = torch.arange(PUZZLE.seq_len, dtype=torch.int32)[None] % PUZZLE.num_hints  # type: ignore[attr-defined]


def at(cycles: int) -> torch.Tensor:
    return torch.full_like(KINDS_BT, cycles)


def test_what_cannot_be_known_yet_is_learnt_as_unknown_and_as_asked() -> None:
    late = learnt(LABELS_BT, HintTensors(KINDS_BT, at(LATER), at(LATER)))
    nothing = learnt(TOKENS_BT, HintTensors(torch.zeros_like(KINDS_BT), at(0), at(0)))
    assert torch.equal(late.loss, nothing.loss)
    assert torch.equal(late.answer_loss, nothing.answer_loss)


def test_news_comes_by_one_position_in_a_cycle() -> None:
    first, last = (learnt(LABELS_BT, HintTensors(KINDS_BT, at(cycles), at(cycles))).loss for cycles in (0, LATER))
    losses = [learnt(LABELS_BT, HintTensors(KINDS_BT, at(cycles), at(cycles))).loss for cycles in range(1, LATER)]
    assert losses[:CYCLES] == [first] * CYCLES  # known in the first segment
    assert losses[CYCLES:] == [losses[-1]] * CYCLES  # and in the second alone
    assert len({loss.item() for loss in (first, losses[-1], last)}) == 3


def test_an_answer_is_judged_by_its_labels_whatever_is_shown_of_them() -> None:
    hidden = HintTensors(KINDS_BT, at(0), at(LATER))
    shown = hidden._replace(answer_after_BT=at(0))
    assert torch.equal(learnt(LABELS_BT, hidden).cells_B, learnt(LABELS_BT, shown).cells_B)
