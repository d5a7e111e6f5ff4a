"""The training loop. Read `Trainer.step` first: a window of segments for every slot, one update.

Shapes: B slots of a micro-batch, T tokens, E puzzle-vector width.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hrm_model import checkpoint
from hrm_model.hrm import HRM
from hrm_puzzles.data.datasets import IGNORE
from hrm_puzzles.puzzle import Hinted
from hrm_train import checkpoints, distributed, memory
from hrm_train.batches import INTERVAL, Feed, Offer, Prefetcher, Progress
from hrm_train.hardware import Hardware, Say
from hrm_train.meter import PhaseTimer
from hrm_train.optim import OPTIMISERS, Average, clip_, step_puzzle_table
from hrm_train.recipe import Recipe
from hrm_train.window import HintTensors, Slots, recompute_blocks, window_loss


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """What a step or a micro-batch measured, in parts that add up; tensors stay on the device until they are read."""

    loss: Tensor  # the mean per row and segment
    answer_loss: Tensor  # without halting and hints
    exact: Tensor  # share of rows
    cells: Tensor  # share of open cells that are right
    solved: Tensor  # how many of the halted rows are exact
    halted: Tensor  # how many rows
    segments: Tensor  # of the halted rows, in sum


@dataclass(frozen=True, kw_only=True)
class StepReport(StepSums):
    gradient_norm: Tensor
    skipped: Tensor  # updates of this run so far, whose gradient was not finite
    lr: float


class Trainer:
    """One model in training. Its whole state is in the checkpoint, so a killed run continues with identical losses.

    The slots are held in micro-batches of at most `micro_batch` rows (all at once by default), whose gradients add up
    to those of the whole batch. Out of memory halves the micro-batch and says so; nothing else changes.
    """

    def __init__(
        self, model: HRM, feed: Feed, recipe: Recipe, hardware: Hardware, *, micro_batch: int = 0, say: Say = print
    ) -> None:
        self.recipe, self.hardware, self.feed, self.say = recipe, hardware, feed, say
        self.ranks = distributed.ranks()
        self.device = torch.device(hardware.device)
        self.model = model.to(self.device)
        self.meter = PhaseTimer(self.device)
        betas = (recipe.beta1, recipe.beta2)
        kind, lr = OPTIMISERS[recipe.optimiser], recipe.scaled(recipe.lr)
        self.optimiser = kind(model.parameters(), lr, betas, recipe.weight_decay)
        self.average = Average(model, recipe.average_decay)
        self.progress = Progress(curriculum_level=recipe.curriculum, curriculum_upcoming=recipe.curriculum)
        self._mine = self.ranks.slots(recipe.batch_size)
        self._prefetcher = Prefetcher(self._draw, workers=hardware.workers, depth=hardware.prefetch)
        if recipe.quantisation_aware:
            for level in model.levels:
                level.compute_as_int8()
        if hardware.recompute:
            recompute_blocks(model)
        hardware.compile_(model, say)
        self._counted = torch.zeros(2, device=self.device)
        self._skipped = torch.zeros((), device=self.device)
        self._parts = [Slots.empty(model, len(self._mine), self.device, hardware.dtype)]
        self.regroup(micro_batch or len(self._mine))

    def step(self) -> StepReport:
        """Refill, a window of segments for every micro-batch, one update; rows halt at the window's end."""
        with self.meter.phase("data"):
            self._refill()
        sums, vector_gradients = self._learn()
        with self.meter.phase("optimiser"):
            samples = self.recipe.batch_size * self.recipe.window
            rate = self.recipe.rate_at(self.progress.samples + samples)
            norm = self._update(sums, vector_gradients, rate)
        self._counted += torch.stack([sums.solved, sums.halted])
        self.meter.count(samples)
        self.progress.step += 1
        self.progress.samples += samples
        return StepReport(**vars(sums), gradient_norm=norm, skipped=self._skipped.clone(), lr=self.optimiser.lr * rate)

    def _refill(self) -> None:
        """Offers every slot a row; on a CPU, where reading a tensor is free, only when some slot has halted."""
        step, recipe = self.progress.step, self.recipe
        if recipe.curriculum and step and step % INTERVAL == 0:
            solved, finished = self._counted.tolist()
            self.progress.take_in(solved, finished, recipe.curriculum_target)
            self._counted.zero_()
        if self.device.type == "cpu" and not any(bool(part.halted_B.any()) for part in self._parts):
            return
        offer = self._offer(step)
        begin = 0
        for part in self._parts:
            rows = offer.rows(slice(begin, begin + len(part)))
            part.refill(self.model, rows, recipe.explore, self.max_segments)
            begin += len(part)

    def _offer(self, step: int) -> Offer:
        drawn = self._prefetcher.at(step, self.progress.num_revealed)
        return Offer(*(tensor.to(self.device, non_blocking=True) for tensor in drawn))

    def _draw(self, step: int, num_revealed: int) -> Offer:
        offer = self.feed.draw(step, self._mine, self.recipe.batch_size, num_revealed)
        return Offer(*(tensor.pin_memory() for tensor in offer)) if self.device.type == "cuda" else offer

    def _learn(self) -> tuple[StepSums, Tensor]:
        """The sums and the puzzle vectors' gradients; out of memory begins again with smaller micro-batches."""
        while True:
            before = [replace(part) for part in self._parts]
            try:
                results = [self._learn_part(part) for part in self._parts]
                sums = torch.stack([torch.stack([*vars(sums).values()]) for sums, _ in results]).sum(0)
                named = dict(zip(StepSums.__dataclass_fields__, sums, strict=True))
                return StepSums(**named), torch.cat([gradient for _, gradient in results])
            except RuntimeError as error:
                if not memory.is_out_of_memory(error):
                    raise
            self._parts = before  # outside the handler: the error's traceback keeps the failed step's tensors alive
            self._shrink()

    def _learn_part(self, slots: Slots) -> tuple[StepSums, Tensor]:
        recipe, model = self.recipe, self.model
        with self.meter.phase("forward"):
            hints = self._hints(slots)
            puzzle_vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
            found = window_loss(model, slots, puzzle_vector_BE, recipe, self.max_segments, hints)
            num_segments = recipe.batch_size * recipe.window
            total = found.loss / num_segments
        with self.meter.phase("backward"):
            total.backward()
        slots.halt(found.margin_B, self.max_segments)
        sums = StepSums(
            loss=total.detach(),
            answer_loss=found.answer_loss / num_segments,
            exact=found.exact_B.sum() / recipe.batch_size,
            cells=found.cells_B.sum() / recipe.batch_size,
            solved=(found.exact_B & slots.halted_B).sum(),
            halted=slots.halted_B.sum(),
            segments=(slots.segments_B * slots.halted_B).sum(),
        )
        gradient_BE = puzzle_vector_BE.grad
        return sums, torch.zeros_like(puzzle_vector_BE) if gradient_BE is None else gradient_BE

    def _hints(self, slots: Slots) -> HintTensors | None:
        """The way to the answers, where the model learns that too."""
        puzzle = self.feed.puzzle
        if not (self.model.config.num_hints and isinstance(puzzle, Hinted)):
            return None
        found = puzzle.hints(slots.tokens_BT.cpu().numpy(), slots.labels_BT.cpu().numpy())
        hints = HintTensors(*(torch.from_numpy(known_BT).to(self.device) for known_BT in found))
        return hints._replace(kinds_BT=hints.kinds_BT.masked_fill(hints.kinds_BT < 0, IGNORE))

    def rehearse(self) -> None:
        """Learns from the first micro-batch as if all its rows were fresh, which costs the most; trains nothing."""
        slots = self._parts[0]
        slots.halted_B = torch.ones_like(slots.halted_B)
        rows = self._offer(self.progress.step).rows(slice(0, len(slots)))
        slots.refill(self.model, rows, self.recipe.explore, self.max_segments)
        self._learn_part(slots)

    def _update(self, sums: StepSums, vector_gradient_BE: Tensor, rate: float) -> Tensor:
        """One update from the gradients of all ranks; returns their norm. One that is not finite changes nothing."""
        recipe, params = self.recipe, self.optimiser.params
        self.ranks.sum_([*vars(sums).values(), *(parameter.grad for parameter in params if parameter.grad is not None)])
        norm, keep = clip_(params, recipe.clip_norm)
        if self.model.config.puzzle_vector_size:
            ids_B = self.ranks.everyones(torch.cat([part.puzzle_ids_B for part in self._parts]))
            gradient_BE = torch.where(keep > 0, self.ranks.everyones(vector_gradient_BE), 0)
            lr = recipe.scaled(recipe.puzzle_lr) * rate * keep
            step_puzzle_table(self.model.puzzle_table, ids_B, gradient_BE, lr, recipe.puzzle_weight_decay)
        self.optimiser.step(rate, keep)
        self.average.update(self.model, self.progress.step + 1)
        self._skipped += 1 - keep
        return norm

    @property
    def max_segments(self) -> int:  # at present
        return self.recipe.segments_at(self.progress.samples, self.model.config.max_segments)

    @property
    def slots(self) -> Slots:
        return Slots.joined(self._parts)

    def regroup(self, micro_batch: int) -> None:
        """From the next step on, micro-batches of at most that many rows."""
        self._parts = self.slots.split(-(-len(self._mine) // micro_batch))

    @property
    def micro_batch(self) -> int:
        return max(map(len, self._parts))

    def _shrink(self) -> None:
        rows = self.micro_batch
        if rows == 1:
            raise ValueError("one row of this model exceeds the memory; use a smaller --preset or --set recompute=true")
        self.optimiser.forget_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.regroup(-(-rows // 2))
        self.say(
            f"out of memory at step {self.progress.step + 1}: going on with {len(self._parts)} micro-batches of "
            f"{self.micro_batch} rows instead of {rows}; the samples and their order stay the same"
        )

    def averaged_model(self) -> HRM:
        """A copy of the network with the averaged weights: what is validated and shipped."""
        model = HRM(self.model.config)
        model.load_state_dict({**self.model.state_dict(), **self.average.state})
        return model.to(self.device).eval()

    def _tensors(self) -> dict[str, Tensor]:
        """Raw weights and moments, by their names in a checkpoint."""
        names, optimiser = [name for name, _ in self.model.named_parameters()], self.optimiser
        kinds = {"weights": optimiser.params, "exp_avg": optimiser.exp_avg, "exp_avg_sq": optimiser.exp_avg_sq}
        return {f"{kind}.{name}": one for kind, of in kinds.items() for name, one in zip(names, of, strict=True)}

    def save(self, path: Path, meta: dict[str, Any]) -> None:
        """Writes a whole checkpoint of this instant, or nothing; every rank must call it, and the first one writes."""
        slots = {name: self.ranks.everyones(tensor).cpu() for name, tensor in self.slots.state().items()}
        self.progress.counted_solved, self.progress.counted_finished = map(int, self._counted.tolist())
        tensors = {**self._tensors(), **{checkpoints.SLOTS + name: tensor for name, tensor in slots.items()}}
        values = {"recipe": asdict(self.recipe), "progress": asdict(self.progress)}
        if self.ranks.is_first:
            checkpoint.save(path, self.averaged_model(), meta, partial(checkpoints.write_trainer, tensors, values))
        self.ranks.wait()

    def restore(self, path: Path) -> None:
        """Continues exactly where the checkpoint `path` was written, on whatever number of ranks."""
        averaged, _ = checkpoint.load(path)
        slots, self.progress = checkpoints.read_trainer(path, self._tensors(), asdict(self.recipe))
        self.optimiser.num_steps = self.progress.step
        self.average.state = {name: p.detach().to(self.device) for name, p in averaged.named_parameters()}
        for name, buffer in averaged.named_buffers():
            self.model.get_buffer(name).copy_(buffer)
        mine = slice(self._mine.start, self._mine.stop)
        micro_batch = self.micro_batch
        self._parts = [Slots.from_state({name: tensor[mine].to(self.device) for name, tensor in slots.items()})]
        self.regroup(micro_batch)
        self._counted[:] = torch.tensor([self.progress.counted_solved, self.progress.counted_finished])
        self._prefetcher.forget()
