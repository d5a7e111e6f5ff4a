"""Compare trainers, whose losses must be equal if their work is; time a segment in PyTorch.

Read `measure` first. Shapes: R rounds, C contestants, B batch, N puzzles, T tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_benchmarks.desktop.plain import PlainHRM, PlainTrainer
from hrm_benchmarks.report import RATIO, Rounds, Row, speeds, take_turns, tell
from hrm_host import memory
from hrm_model import checkpoint, hrm
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_train import batches, hardware, loop
from hrm_train.recipe import Recipe, config_for, recipe_for

GAIN = 0.7
"""Scales the matrices of both levels. A fresh model amplifies rounding so much that equal steps
would part within three."""
CHECKED_STEPS = 5  # steps whose losses must be equal before the timing starts
NUM_PUZZLES = 64
LOSS_TOLERANCE = 1e-5
PUBLISHED_SEGMENTS = 16
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


def contestants(
    preset: str, puzzle_name: str, data: Path, *, batch_size: int, num_threads: int | None
) -> list[TrainerUnderTest]:
    """Return the plain published step, the same step by our trainer, and the preset's recipe.

    Builds their data set in the folder `data`.
    """
    puzzle = registry.get(puzzle_name)
    config = config_for(preset, puzzle, 1)
    easiest = puzzle.difficulties[0]
    rows = DataRecipe(puzzle=puzzle.name, num_train=NUM_PUZZLES, num_test=1, difficulty=easiest)
    build(rows, data)
    published = recipe_for("published", puzzle, batch_size)
    plain = TrainerUnderTest(
        name="published step, plain",
        is_ours=False,
        config=replace(config, halt_rule="difference", max_segments=PUBLISHED_SEGMENTS),
        recipe=replace(published, augment=False),
        data=data,
        num_threads=num_threads or torch.get_num_threads(),
    )
    same = replace(plain, name="published step, our trainer", is_ours=True)
    own = replace(recipe_for(preset, puzzle, batch_size), continue_loss=False)
    one_pass = replace(config, halt_rule="q_halt")
    name = "our recipe: q_halt alone, no second pass"
    preferred = replace(same, name=name, config=one_pass, recipe=own, equal_work=False)
    return [plain, same, preferred]


def compiled(trainers: Sequence[TrainerUnderTest]) -> list[TrainerUnderTest]:
    """Return our trainers again, with torch.compile."""
    ours = [one for one in trainers if one.is_ours]
    return [replace(one, name=f"{one.name}, compiled", compile=True) for one in ours]


def measure(trainers: Sequence[TrainerUnderTest], rounds: Rounds) -> list[Row]:
    """Return a row for each trainer.

    Raises ValueError if a trainer with equal work does not have the losses of the first.
    """
    tell(f"starting {len(trainers)} trainers and comparing their first {CHECKED_STEPS} losses")
    preparing = [partial(_prepared, trainer) for trainer in trainers]
    seconds_RC = take_turns(preparing, rounds, partial(require_equal, trainers))
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
    source = batches.open_source(contestant.data, "train", puzzle)
    feed = batches.Feed(source, puzzle, seed=recipe.seed, augment=recipe.augment)
    model = initial(contestant.config)
    if not contestant.is_ours:
        plain = PlainHRM(contestant.config)
        plain.load_state_dict(model.state_dict())
        return PlainTrainer(plain, feed, recipe).step
    cpu = replace(hardware.PRESETS["cpu"], compile=contestant.compile)
    trainer = loop.Trainer(model, feed, recipe, cpu)
    return lambda: float(trainer.step().loss)


@torch.no_grad()
def initial(config: HRMConfig) -> hrm.HRM:
    """Return a fresh model, the same in every process, that does not amplify rounding."""
    torch.manual_seed(0)
    model = model_of(config)
    for level in model.levels:
        for weights in level.parameters():
            weights *= GAIN
    return model


def segment_step(
    path: Path, tokens_BT: NDArray[np.int32], num_threads: int, *, compiled: bool
) -> Callable[[], object]:
    """Return a function that runs one more segment of all puzzles, with answers and margins."""
    torch.set_num_threads(num_threads)
    model, _ = checkpoint.load(checkpoint.resolve(path))
    model.eval()
    batch = len(tokens_BT)
    tokens = torch.from_numpy(tokens_BT)
    first_ids_B = torch.zeros(batch, dtype=torch.long)
    vector_BE = model.puzzle_table[first_ids_B]

    def run(carry: hrm.Carry) -> tuple[hrm.Carry, torch.Tensor, torch.Tensor]:
        output = model.think(carry, tokens, vector_BE)
        return output.carry, output.logits_BTV.argmax(-1), model.margin(output)

    segment = torch.compile(run) if compiled else run
    start = model.start(batch)
    carry = hrm.Carry(*(state.clone() for state in start))

    @torch.no_grad()
    def step() -> object:
        nonlocal carry
        carry, *answers = segment(carry)
        return answers

    return step
