"""Evaluation on the small real thing: what counts, what is checked, where the model would halt."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import train_tools
from torch.nn.functional import one_hot
from train_tools import PUZZLE

from hrm_model.hrm import HRM, SegmentOutput
from hrm_puzzles import registry
from hrm_puzzles.arc.variants import Variant
from hrm_puzzles.data.datasets import IGNORE, Batch
from hrm_puzzles.data.sources import questions_made
from hrm_train.evaluate import HEADER, Evaluation, evaluate

SIZES = replace(train_tools.SIZES, max_segments=3)


class Scripted(HRM):
    """Answers each row right from segment `solves_at` on, and wants to halt from `halts_at` on."""

    def __init__(
        self,
        labels_BT: np.ndarray,
        solves_at_B: list[int],
        halts_at_B: list[int],
        vocab_size: int = SIZES.vocab_size,
    ) -> None:
        super().__init__(replace(SIZES, vocab_size=vocab_size))
        self.labels_BT = torch.from_numpy(labels_BT).long()
        self.solves_at_B = torch.tensor(solves_at_B)
        self.halts_at_B = torch.tensor(halts_at_B)
        self.segments_run = 0

    def segment(self, carry, tokens_BT, puzzle_ids_B) -> SegmentOutput:  # noqa: ARG002
        self.segments_run += 1
        wrong_BT = (self.labels_BT + 1 - 2) % 4 + 2
        is_solved_B = self.segments_run >= self.solves_at_B
        answers_BT = torch.where(is_solved_B[:, None], self.labels_BT, wrong_BT)
        q_halt_B = torch.where(self.segments_run >= self.halts_at_B, 1.0, -1.0)
        logits_BTV = one_hot(answers_BT, self.config.vocab_size).float()
        return SegmentOutput(carry, logits_BTV, q_halt_B, torch.zeros_like(q_halt_B))


def rows(count: int) -> Batch:
    made = questions_made(PUZZLE, count)
    return Batch(made.tokens_NT, made.labels_NT, made.puzzle_ids_N)


def scripted(held: Batch, solves_at_B: list[int], halts_at_B: list[int]) -> Evaluation:
    return evaluate(Scripted(held.labels_BT, solves_at_B, halts_at_B), PUZZLE, held)


def test_halting_is_right_where_it_says_what_is_true():
    result = scripted(rows(4), [1, 2, 3, 9], [1, 3, 3, 9])
    assert result.exact == result.proven == (0.25, 0.5, 0.75)
    assert result.score == 0.75
    assert result.halting == (1.0, 0.75, 1.0)
    assert result.segments == (1 + 3 + 3 + 3) / 4
    assert result.halted_exact == 0.75
    early = scripted(rows(2), [2, 2], [1, 2])
    assert (early.segments, early.halted_exact, early.exact[-1]) == (1.5, 0.5, 1.0)
    row = early.row(step=1234, elapsed_s=7300)
    assert row.split() == ["1234", *["100.0", "%"] * 3, f"{early.loss:.3g}", "2.0", "h", "2"]
    for name, ends_with in (("exact", "100.0 %"), ("loss", f"{early.loss:.3g}"), ("puzzles", "2")):
        end = HEADER.index(name) + len(name)
        assert row[:end].endswith(ends_with)


def test_rows_without_an_answer_and_cells_without_a_label_do_not_count():
    held = rows(3)
    labels_BT = held.labels_BT.copy()
    labels_BT[1, :] = IGNORE
    labels_BT[2, :5] = IGNORE
    model = Scripted(held.labels_BT[[0, 2]], [9, 1], [9, 9])
    result = evaluate(model, PUZZLE, held._replace(labels_BT=labels_BT))
    assert result.num_puzzles == 2
    assert result.exact == (0.5, 0.5, 0.5)
    held = rows(2)
    nothing_BT = np.full_like(held.labels_BT, IGNORE)
    with pytest.raises(ValueError, match="no held-out puzzle has an answer"):
        scripted(held._replace(labels_BT=nothing_BT), [1, 1], [1, 1])


def test_variants_of_a_task_vote_where_their_names_are_known():
    arc = registry.get("arc-10x10")
    turned = Variant(turn=1)
    grid = np.array([[1, 2, 3]], dtype=np.int8)
    tokens_BT = np.stack([arc.encode(grid), arc.encode(turned.apply(grid))] * 2)
    held = Batch(tokens_BT, tokens_BT, np.arange(1, 5, dtype=np.int32))
    names = ("<blank>", "a", turned.name("a"), "b", turned.name("b"))
    model = Scripted(tokens_BT, [1, 1, 1, 9], [9, 9, 9, 1], vocab_size=arc.vocab_size)
    result = evaluate(model, arc, held, identifiers=names)
    assert (result.exact[-1], result.pass_at[1], result.pass_at[2]) == (0.75, 0.5, 1.0)
    assert (result.score, result.proven[-1]) == (0.75, 0.0)  # no proof exists
    row = result.row(step=99_999_999, elapsed_s=1)
    assert "  – " in row  # instead of proven
    assert row.endswith(" pass@1/2 50.0/100.0 %")
    assert len(row) <= 80
    assert evaluate(model, arc, held).pass_at == {}
