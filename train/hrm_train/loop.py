"""The training loop. Read `Trainer.step` first: a window of segments for every slot, one update.

Shapes: B slots of a micro-batch, T tokens, E puzzle-vector width.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hrm_model import checkpoint
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import IGNORE, Split
from hrm_puzzles.puzzle import Hinted
from hrm_train import checkpoints, distributed, memory
from hrm_train.batches import Feed, Offer, Prefetcher, Progress
from hrm_train.hardware import Hardware
from hrm_train.meter import PhaseTimer
from hrm_train.optim import OPTIMIZERS, Average, step_puzzle_table
from hrm_train.recipe import Recipe
from hrm_train.window import HintTensors, Slots, recompute_blocks, window_loss

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """What a step or a micro-batch measured, in parts that add up. Tensors stay on the device."""

    loss: Tensor  # mean per row and segment
    answer_loss: Tensor  # loss without halting and hints
    exact: Tensor  # share of exact rows
    cells: Tensor  # share of open cells that are right
    halted: Tensor  # number of halted rows
    segments: Tensor  # sum of the segments of the halted rows


@dataclass(frozen=True, kw_only=True)
class StepReport(StepSums):
    gradient_norm: Tensor
    lr: float


class Trainer:
    """One model in training. A checkpoint holds its whole state, so a resume has identical losses.

    The slots are split into micro-batches of at most `micro_batch` rows (0: one). Their
    gradients add up to those of the whole batch. If memory runs out, the trainer halves the
    micro-batch and reports it; nothing else changes.
    """

    def __init__(
        self,
        model: HRM,
        source: Split,
        recipe: Recipe,
        hardware: Hardware,
        *,
        micro_batch: int = 0,
    ) -> None:
        self.recipe = recipe
        self.hardware = hardware
        self.feed = Feed(source, seed=recipe.seed, augment=recipe.augment)
        self.ranks = distributed.ranks()
        self.device = torch.device(hardware.device)
        self.model = model.to(self.device)
        self.meter = PhaseTimer(self.device)
        self.optimizer = OPTIMIZERS[recipe.optimizer](
            model.parameters(),
            lr=recipe.scaled(recipe.lr),
            betas=(recipe.beta1, recipe.beta2),
            weight_decay=recipe.weight_decay,
        )
        self.average = Average(model, recipe.average_decay)
        self.progress = Progress()
        self._mine = self.ranks.slots(recipe.batch_size)
        self._prefetcher = Prefetcher(
            self.feed,
            self._mine,
            recipe.batch_size,
            workers=hardware.workers,
            depth=hardware.prefetch,
            pins=self.device.type == "cuda",
        )
        if hardware.recompute:
            recompute_blocks(model)
        hardware.compile_(model)
        num_slots = len(self._mine)
        self._parts = [Slots.empty(model, num_slots, self.device, hardware.dtype)]
        self.regroup(micro_batch or num_slots)

    def step(self) -> StepReport:
        """Refills the slots, runs a window of segments for every micro-batch, and updates once.

        Rows halt at the window's end.
        """
        with self.meter.phase("data"):
            self._refill()
        sums, vector_gradients = self._learn()
        with self.meter.phase("optimizer"):
            samples = self.recipe.batch_size * self.recipe.window
            rate = self.recipe.rate_at(self.progress.samples + samples)
            norm = self._update(sums, vector_gradients, rate)
        self.meter.count(samples)
        self.progress.step += 1
        self.progress.samples += samples
        return StepReport(
            **vars(sums),
            gradient_norm=norm,
            lr=self.optimizer.lr * rate,
        )

    def _refill(self) -> None:
        """Offers every slot a row; only halted slots take it."""
        # On a CPU reading a tensor is free, so the draw is skipped if no slot has halted.
        if self.device.type == "cpu" and not any(part.halted_B.any() for part in self._parts):
            return
        offer = self._offer()
        begin = 0
        for part in self._parts:
            rows = offer.rows(slice(begin, begin + len(part)))
            part.refill(self.model, rows, self.recipe.explore, self.max_segments)
            begin += len(part)

    def _offer(self) -> Offer:
        drawn = self._prefetcher.at(self.progress.step)
        moved = [tensor.to(self.device, non_blocking=True) for tensor in drawn]
        return Offer(*moved)

    def _learn(self) -> tuple[StepSums, Tensor]:
        """Returns the sums over all micro-batches and the puzzle vectors' gradients."""
        results = self._fitting(lambda: [self._learn_part(part) for part in self._parts])
        sums, gradients = zip(*results, strict=True)
        rows = [torch.stack([*vars(part).values()]) for part in sums]
        totals = torch.stack(rows).sum(0)
        added = StepSums(**dict(zip(StepSums.__dataclass_fields__, totals, strict=True)))
        return added, torch.cat(gradients)

    def _fitting(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns; while memory runs out, halves the micro-batch first."""
        while True:
            before = [replace(part) for part in self._parts]
            try:
                return work()
            except RuntimeError as error:
                if not memory.is_out_of_memory(error):
                    raise
            # Not in the handler: the error's traceback keeps the failed step's tensors alive.
            self._parts = before
            self._shrink()

    def _learn_part(self, slots: Slots) -> tuple[StepSums, Tensor]:
        recipe = self.recipe
        model = self.model
        max_segments = self.max_segments
        with self.meter.phase("forward"):
            hints = self._hints(slots)
            puzzle_vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
            found = window_loss(model, slots, puzzle_vector_BE, recipe, max_segments, hints)
            num_segments = recipe.batch_size * recipe.window
            total = found.loss / num_segments
        with self.meter.phase("backward"):
            total.backward()
        slots.halt(found.margin_B, max_segments)
        sums = StepSums(
            loss=total.detach(),
            answer_loss=found.answer_loss / num_segments,
            exact=found.exact_B.sum() / recipe.batch_size,
            cells=found.cells_B.sum() / recipe.batch_size,
            halted=slots.halted_B.sum(),
            segments=(slots.segments_B * slots.halted_B).sum(),
        )
        gradient_BE = puzzle_vector_BE.grad
        if gradient_BE is None:
            gradient_BE = torch.zeros_like(puzzle_vector_BE)
        return sums, gradient_BE

    def _hints(self, slots: Slots) -> HintTensors | None:
        """The hints of the slots, if the model learns hints."""
        puzzle = self.feed.puzzle
        if not (self.model.config.num_hints and isinstance(puzzle, Hinted)):
            return None
        tokens_BT = slots.tokens_BT.cpu().numpy()
        labels_BT = slots.labels_BT.cpu().numpy()
        found = puzzle.hints(tokens_BT, labels_BT)
        moved = [torch.from_numpy(known_BT).to(self.device) for known_BT in found]
        hints = HintTensors(*moved)
        kinds_BT = hints.kinds_BT.masked_fill(hints.kinds_BT < 0, IGNORE)
        return hints._replace(kinds_BT=kinds_BT)

    def rehearse(self) -> None:
        """Learns from the first micro-batch as if all rows were fresh, but updates nothing.

        No step costs more.
        """
        slots = self._parts[0]
        slots.halted_B = torch.ones_like(slots.halted_B)
        rows = self._offer().rows(slice(0, len(slots)))
        slots.refill(self.model, rows, self.recipe.explore, self.max_segments)
        self._learn_part(slots)

    def rehearse_fitting(self) -> None:
        """Rehearses with the largest micro-batch that fits; the trainer's slots are lost.

        Raises ValueError if not even one row fits.
        """
        self._fitting(self.rehearse)
        self.optimizer.forget_gradients()
        self.meter = PhaseTimer(self.device)

    def _update(self, sums: StepSums, vector_gradient_BE: Tensor, rate: float) -> Tensor:
        """Updates once from the gradients of all ranks; returns their norm before clipping."""
        params = self.optimizer.params
        gradients = [parameter.grad for parameter in params if parameter.grad is not None]
        self.ranks.sum_([*vars(sums).values(), *gradients])
        norm = nn.utils.clip_grad_norm_(params, self.recipe.clip_norm or math.inf)
        if self.model.config.puzzle_vector_size:
            self._update_puzzle_table(vector_gradient_BE, rate)
        self.optimizer.step(rate)
        self.average.update(self.model, self.progress.step + 1)
        return norm

    def _update_puzzle_table(self, gradient_BE: Tensor, rate: float) -> None:
        recipe = self.recipe
        my_ids_B = torch.cat([part.puzzle_ids_B for part in self._parts])
        ids_B = self.ranks.everyones(my_ids_B)
        all_BE = self.ranks.everyones(gradient_BE)
        lr = recipe.scaled(recipe.puzzle_lr) * rate
        table = self.model.puzzle_table
        step_puzzle_table(table, ids_B, all_BE, lr, recipe.puzzle_weight_decay)

    @property
    def max_segments(self) -> int:
        """The limit of segments at this step."""
        return self.recipe.segments_at(self.progress.samples, self.model.config.max_segments)

    @property
    def passes(self) -> float:
        """How often the run has seen the data: a pass takes one sample of each group."""
        return self.progress.samples / self.feed.source.num_groups

    @property
    def slots(self) -> Slots:
        return Slots.joined(self._parts)

    def regroup(self, micro_batch: int) -> None:
        """Splits the slots into micro-batches of at most that many rows."""
        num_parts = -(-len(self._mine) // micro_batch)
        self._parts = self.slots.split(num_parts)

    @property
    def micro_batch(self) -> int:
        return max(map(len, self._parts))

    def _shrink(self) -> None:
        rows = self.micro_batch
        if rows == 1:
            raise ValueError(
                "one row of this model exceeds the memory; "
                "use a smaller --preset or --set recompute=true"
            )
        self.optimizer.forget_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.regroup(-(-rows // 2))
        distributed.say(
            f"out of memory at step {self.progress.step + 1}: continuing with "
            f"{len(self._parts)} micro-batches of {self.micro_batch} rows instead of {rows}; "
            "the samples and their order stay the same"
        )

    def averaged_model(self) -> HRM:
        """Returns a copy with the averaged weights, which is validated and shipped."""
        model = model_of(self.model.config)
        model.load_state_dict({**self.model.state_dict(), **self.average.state})
        return model.to(self.device).eval()

    def _tensors(self) -> dict[str, Tensor]:
        """Raw weights and moments, by their names in a checkpoint."""
        names = [name for name, _ in self.model.named_parameters()]
        kinds = {"weights": self.optimizer.params, **self.optimizer.moments}
        found: dict[str, Tensor] = {}
        for kind, tensors in kinds.items():
            for name, tensor in zip(names, tensors, strict=True):
                found[f"{kind}.{name}"] = tensor
        return found

    def save(self, path: Path, meta: dict[str, Any]) -> None:
        """Writes a complete checkpoint of the current state, or nothing.

        Every rank must call it; the first one writes.
        """
        tensors = self._tensors()
        for name, tensor in self.slots.state().items():
            tensors[checkpoints.SLOTS + name] = self.ranks.everyones(tensor).cpu()
        values = {"recipe": asdict(self.recipe), "progress": asdict(self.progress)}
        if self.ranks.is_first:
            write_trainer = partial(checkpoints.write_trainer, tensors, values)
            checkpoint.save(path, self.averaged_model(), meta, write_trainer)
        self.ranks.wait()

    def restore(self, path: Path) -> None:
        """Continues exactly from the checkpoint at `path`, with any number of ranks."""
        averaged, _ = checkpoint.load(path)
        slots, self.progress = checkpoints.read_trainer(path, self._tensors())
        self.optimizer.num_steps = self.progress.step
        for name, parameter in averaged.named_parameters():
            self.average.state[name] = parameter.detach().to(self.device)
        for name, buffer in averaged.named_buffers():
            self.model.get_buffer(name).copy_(buffer)
        self._restore_slots(slots)
        self._prefetcher.forget()

    def _restore_slots(self, slots: dict[str, Tensor]) -> None:
        """Takes over this rank's slots. Slots that the saved batch lacks wait for a puzzle."""
        micro_batch = self.micro_batch
        state = Slots.empty(self.model, len(self._mine), self.device, self.hardware.dtype).state()
        for name, tensor in slots.items():
            saved = tensor[self._mine.start : self._mine.stop].to(self.device)
            state[name] = torch.cat([saved, state[name][len(saved) :]])
        self._parts = [Slots.from_state(state)]
        self.regroup(micro_batch)
