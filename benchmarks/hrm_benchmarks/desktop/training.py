"""Compare trainers, whose losses must be equal if their work is.

The baseline is the published training step, rewritten from its formulas in plain PyTorch: a segment
for every row, a whole second one for q_continue, the loss and both optimizers. What the blocks and
the optimizer do is written here, because they take most of the time. Weights, embedding, cycles,
heads, slots and loss are ours. Float32, eager, SDPA.

Source: the published HRM (sapientinc/HRM at 42410da): network, ACT wrapper, loss head,
`train_batch`; adam-atan2 0.0.3.

Read `measure` first. Shapes: R rounds, C contestants, B batch, T tokens, N = prefix + T positions,
D hidden, H heads, K head width, E puzzle-vector width.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hrm_benchmarks.command import TrainingOptions
from hrm_benchmarks.desktop import contest
from hrm_benchmarks.report import RATIO, Row, TurnOptions, speeds, take_turns, tell
from hrm_host import memory
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_model.layers import Block, Level, Rotation
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_train import batches, hardware, loop, optim
from hrm_train.recipe import Recipe, config_for, recipe_for
from hrm_train.window import Slots, window_loss

GAIN = 0.7
"""Scales the matrices of both levels. A fresh model amplifies rounding so much that equal steps
would part within three."""
CHECKED_STEPS = 5  # steps whose losses must be equal before the timing starts
LOSS_TOLERANCE = 1e-5
COLUMNS = {
    "trainer": "{name}",
    "equal work": "{equal_work}",
    "samples/s": "{samples_per_s:.1f}",
    "ms a step": "{step_ms:.1f}",
    "ratio": RATIO,
}
LEGEND = (
    "sample: one puzzle for one segment\n"
    "ratio: samples/s over the plain step of the same round, median (quartiles)\n"
    "equal work: from equal weights, the first losses equal those of the plain step to "
    f"{LOSS_TOLERANCE:g}"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerUnderTest:
    name: str
    is_ours: bool
    config: HRMConfig
    recipe: Recipe
    data: Path
    num_threads: int
    compile: bool = False
    equal_work: bool = True  # must have the same losses as the plain trainer

    @property
    def samples_per_step(self) -> int:
        return self.recipe.batch_size * self.recipe.window


def contestants(options: TrainingOptions, folder: Path) -> list[TrainerUnderTest]:
    """Return the plain published step, the same step by our trainer, and the preset's recipe.

    Builds their data set in `folder`.
    """
    (name,) = options.puzzle or ("sudoku",)
    preset = options.preset or "small"
    batch_size = options.batch
    puzzle = registry.get(name)
    config = config_for(preset, puzzle, 1)
    data = contest.built(name, folder, (64, 1), puzzle.difficulties[0])
    published = recipe_for("published", puzzle, batch_size)
    plain = TrainerUnderTest(
        name="published step, plain",
        is_ours=False,
        config=replace(config, halt_rule="difference", max_segments=16),
        recipe=replace(published, augment=False),
        data=data,
        num_threads=options.threads or torch.get_num_threads(),
    )
    same = replace(plain, name="published step, our trainer", is_ours=True)
    own = replace(recipe_for(preset, puzzle, batch_size), continue_loss=False)
    one_pass = replace(config, halt_rule="q_halt")
    label = "our recipe: q_halt alone, no second pass"
    preferred = replace(same, name=label, config=one_pass, recipe=own, equal_work=False)
    found = [plain, same, preferred]
    if options.compiled:
        for one in (same, preferred):
            found.append(replace(one, name=f"{one.name}, compiled", compile=True))
    return found


def measure(trainers: Sequence[TrainerUnderTest], options: TurnOptions) -> list[Row]:
    """Return a row for each trainer.

    Raises ValueError if a trainer with equal work does not have the losses of the first.
    """
    tell(f"starting {len(trainers)} trainers and comparing their first {CHECKED_STEPS} losses")
    preparing = [partial(_prepared, trainer) for trainer in trainers]
    seconds_RC = take_turns(preparing, options, partial(require_equal, trainers))
    samples_C = [trainer.samples_per_step for trainer in trainers]
    rows: list[Row] = []
    for trainer, row in zip(trainers, speeds(seconds_RC, samples_C), strict=True):
        samples_per_s = 1e3 * trainer.samples_per_step / row["step_ms"]
        names = {"name": trainer.name, "equal_work": trainer.equal_work}
        rows.append({**names, "samples_per_s": samples_per_s, **row})
    return rows


def require_equal(trainers: Sequence[TrainerUnderTest], losses: Sequence[Sequence[float]]) -> None:
    """Raise ValueError if a trainer with equal work does not have the losses of the first."""
    plain = losses[0]
    for trainer, own in zip(trainers, losses, strict=True):
        gap = float(np.abs(np.subtract(own, plain)).max())
        is_equal = gap <= LOSS_TOLERANCE  # false for NaN
        if trainer.equal_work and not is_equal:
            raise ValueError(
                f"{trainer.name!r} has the losses {own}, the plain step has {plain}, so the work "
                "is not equal: report this as a fault of the benchmark."
            )


def _prepared(trainer: TrainerUnderTest) -> tuple[list[float], Callable[[], float]]:
    """Return the first losses, and the step."""
    torch.set_num_threads(trainer.num_threads)
    step = stepper(trainer)
    if trainer.is_ours:
        memory.keep_freed_memory()
    losses = [step() for _ in range(CHECKED_STEPS)]
    return losses, step


def stepper(contestant: TrainerUnderTest) -> Callable[[], float]:
    """Return a function that trains one step and returns its loss.

    Contestants with the same config start from the same weights.
    """
    recipe = contestant.recipe
    puzzle = registry.get(recipe.puzzle)
    source = datasets.open_split(contestant.data, "train", puzzle)
    model = initial(contestant.config)
    if not contestant.is_ours:
        plain = plain_model(contestant.config)
        plain.load_state_dict(model.state_dict())
        return PlainTrainer(plain, source, recipe).step
    cpu = replace(hardware.PRESETS["cpu"], compile=contestant.compile)
    trainer = loop.Trainer(model, source, recipe, cpu)
    return lambda: float(trainer.step().loss)


@torch.no_grad()
def initial(config: HRMConfig) -> HRM:
    """Return a fresh model, the same in every process, that does not amplify rounding."""
    torch.manual_seed(0)
    model = model_of(config)
    for level in model.levels:
        for weights in level.parameters():
            weights *= GAIN
    return model


def plain_model(config: HRMConfig) -> HRM:
    """The model over plain blocks; its weights keep their names."""
    model = HRM(config)
    if config.arch != "trm":
        model.add_module("high_level", Level(config, config.high_layers, PlainBlock))
    model.add_module("low_level", Level(config, config.low_layers, PlainBlock))
    return model


class PlainBlock(Block):
    """The published formulas, applied to every position."""

    def forward(self, x_BND: Tensor, rotation: Rotation | None) -> Tensor:
        attention = self.self_attn
        qkv_BNHK = attention.qkv_proj(x_BND).unflatten(-1, (-1, attention.head_size))
        q, k, v = qkv_BNHK.transpose(1, 2).chunk(3, dim=1)
        if rotation is not None:
            cos, sin = rotation
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        mixed_BHNK = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed_BND = mixed_BHNK.transpose(1, 2).flatten(2)
        x_BND = rms_norm(x_BND + attention.o_proj(mixed_BND), self.eps)
        gate, up = self.mlp.gate_up_proj(x_BND).chunk(2, dim=-1)
        gated = nn.functional.silu(gate) * up
        return rms_norm(x_BND + self.mlp.down_proj(gated), self.eps)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    mean_square = x.square().mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class PlainAdamATan2:
    """The formula, applied to one parameter at a time."""

    def __init__(self, params: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.beta1 = recipe.beta1
        self.beta2 = recipe.beta2
        self.weight_decay = recipe.weight_decay
        self.moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    @torch.no_grad()
    def step(self, lr: float, num_steps: int) -> None:
        correction1 = 1 - self.beta1**num_steps
        correction2 = math.sqrt(1 - self.beta2**num_steps)
        for p, m, v in self.moments:
            if p.grad is None:
                continue
            p.mul_(1 - lr * self.weight_decay)
            m.lerp_(p.grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            denominator = v.sqrt().div_(correction2)
            direction = torch.atan2(m, denominator)
            p.add_(direction, alpha=-lr / correction1)
            p.grad = None


class PlainTrainer:
    """The published loop: every step draws a whole batch, but only halted slots take their row."""

    def __init__(self, model: HRM, source: datasets.Split, recipe: Recipe) -> None:
        self.model = model
        self.feed = batches.Feed(source, seed=recipe.seed, augment=recipe.augment)
        self.recipe = recipe
        self.optimizer = PlainAdamATan2(model.parameters(), recipe)
        self.num_steps = 0
        self.slots = Slots.empty(model, recipe.batch_size, torch.device("cpu"))

    def step(self) -> float:
        """Train one step; return its loss over the batch size, as the published code logs it."""
        recipe = self.recipe
        slots = self.slots
        size = recipe.batch_size
        num_most = self.model.config.max_segments
        offer = self.feed.draw(self.num_steps, range(size), size)
        slots.refill(self.model, offer, recipe.explore, num_most)
        self.num_steps += 1
        table = self.model.puzzle_table
        vector_BE = table[slots.puzzle_ids_B].requires_grad_()
        found = window_loss(self.model, slots, vector_BE, recipe, num_most)
        loss = found.loss / size
        loss.backward()
        slots.halt(found.margin_B, num_most)
        rate = recipe.rate_at(self.num_steps * size)
        if vector_BE.grad is not None:
            lr = rate * recipe.scaled(recipe.puzzle_lr)
            decay = recipe.puzzle_weight_decay
            optim.step_puzzle_table(table, slots.puzzle_ids_B, vector_BE.grad, lr, decay)
        self.optimizer.step(rate * recipe.scaled(recipe.lr), self.num_steps)
        return float(loss.detach())
