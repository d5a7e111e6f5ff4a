"""The training loop. Read `Trainer.step` first: a window of segments for every slot, one update.

Shapes: B batch, T tokens, E puzzle-vector width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hrm_model import checkpoint
from hrm_model.hrm import HRM, SegmentOutput
from hrm_puzzles.puzzle import Puzzle
from hrm_train import state
from hrm_train.batches import Curriculum, Feed
from hrm_train.hardware import Hardware
from hrm_train.losses import SegmentLoss, segment_loss
from hrm_train.optim import AdamATan2, Average, rate_at, step_puzzle_table
from hrm_train.recipe import Recipe
from hrm_train.slots import Slots


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step measured; means per row."""

    loss: float
    exact: float
    halted: int
    gradient_norm: float
    rate: float


class Trainer:
    """One model in training. Its whole state is in the checkpoint, so a killed run continues with identical losses."""

    def __init__(self, model: HRM, puzzle: Puzzle, feed: Feed, recipe: Recipe, hardware: Hardware) -> None:
        self.recipe, self.hardware, self.puzzle, self.feed = recipe, hardware, puzzle, feed
        self.device = torch.device(hardware.device)
        self.model = model.to(self.device)
        self.optimiser = AdamATan2(
            model.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay
        )
        self.average = Average(model, recipe.average_decay)
        self.slots = Slots.empty(model, recipe.batch_size, self.device)
        self.curriculum = Curriculum(recipe.curriculum, recipe.curriculum_target)
        self.progress = state.Progress()
        self._think = torch.compile(model.think) if hardware.compile else model.think

    def step(self) -> StepReport:
        """Refill, a window of segments, one update; rows halt at the window's end."""
        recipe, slots, model = self.recipe, self.slots, self.model
        slots.refill(model, self.feed, self.progress.step, self.curriculum.num_revealed, recipe.explore)
        puzzle_vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
        output, loss = self._segment(puzzle_vector_BE)
        total = loss.total
        for _ in range(recipe.window - 1):
            output, loss = self._segment(puzzle_vector_BE)
            total = total + loss.total
        total = total / (recipe.batch_size * recipe.window)
        total.backward()
        rate = self._rate()
        norm = self._update(puzzle_vector_BE, rate)
        slots.halt(model.margin(output), model.config.max_segments)
        slots.report(loss.exact_B, self.curriculum)
        self._count()
        return StepReport(
            loss=float(total.detach()),
            exact=float(loss.exact_B.float().mean()),
            halted=int(slots.halted_B.sum()),
            gradient_norm=norm,
            rate=rate,
        )

    def _segment(self, puzzle_vector_BE: Tensor) -> tuple[SegmentOutput, SegmentLoss]:
        recipe, slots = self.recipe, self.slots
        with torch.autocast(self.device.type, self.hardware.autocast, enabled=self.hardware.autocast is not None):
            output = self._think(slots.carry, slots.tokens_BT, puzzle_vector_BE)
            target = self._value_of_going_on(output, puzzle_vector_BE) if recipe.continue_loss else None
        loss = segment_loss(
            output.logits_BTV, output.q_halt_B, output.q_continue_B, slots.labels_BT, target, recipe.loss
        )
        slots.advance(output.carry)
        return output, loss

    @torch.no_grad()
    def _value_of_going_on(self, output: SegmentOutput, puzzle_vector_BE: Tensor) -> Tensor:
        """Target of q_continue: the better of halting and going on after one more segment (at the limit: halting)."""
        after = self._think(output.carry, self.slots.tokens_BT, puzzle_vector_BE)
        at_limit_B = self.slots.segments_B + 1 >= self.model.config.max_segments
        best_B = torch.maximum(after.q_halt_B, after.q_continue_B)
        return torch.where(at_limit_B, after.q_halt_B, best_B).sigmoid()

    def _rate(self) -> float:
        recipe = self.recipe
        samples = self.progress.samples + recipe.batch_size * recipe.window
        return rate_at(samples, total=recipe.total_samples, warmup=recipe.warmup_samples, min_ratio=recipe.lr_min_ratio)

    def _update(self, puzzle_vector_BE: Tensor, rate: float) -> float:
        recipe, model = self.recipe, self.model
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm))
        if not np.isfinite(norm):
            raise FloatingPointError(
                f"the gradient is {norm} at step {self.progress.step + 1}; "
                f"start again from the last checkpoint with --init and an lr below {recipe.lr}"
            )
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr * rate
        if puzzle_vector_BE.grad is not None:
            step_puzzle_table(
                model.puzzle_table,
                self.slots.puzzle_ids_B,
                puzzle_vector_BE.grad,
                recipe.puzzle_lr * rate,
                recipe.puzzle_weight_decay,
            )
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.average.update(model, self.progress.step + 1)
        return norm

    def _count(self) -> None:
        self.progress.step += 1
        self.progress.samples += self.recipe.batch_size * self.recipe.window
        self.progress.curriculum_level = self.curriculum.level
        self.progress.solved_share = self.curriculum.solved_share

    def averaged_model(self) -> HRM:
        """A copy of the network with the averaged weights: what is validated and shipped."""
        model = HRM(self.model.config)
        model.load_state_dict(self.average.state)
        return model.to(self.device).eval()

    def save(self, path: Path, meta: dict[str, Any]) -> None:
        """Writes a whole checkpoint of this instant, or nothing."""

        def write_more(directory: Path) -> None:
            state.write(directory, self.model, self.optimiser, self.slots.state(), self.recipe, self.progress)

        checkpoint.save(path, self.averaged_model(), meta, write_more)

    def restore(self, path: Path) -> None:
        """Continues exactly where the checkpoint `path` was written."""
        averaged, _ = checkpoint.load(path)
        slots, self.progress = state.read(path, self.model, self.optimiser, self.recipe)
        self.average.state = {name: t.to(self.device) for name, t in averaged.state_dict().items()}
        self.slots.restore(slots)
        self.curriculum.level = self.progress.curriculum_level
        self.curriculum.solved_share = self.progress.solved_share
