"""Trainers side by side, with equal losses where the work is said to be equal; and one segment by PyTorch.

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
from hrm_benchmarks.report import RATIO, Rounds, Row, beside_first, take_turns, tell
from hrm_host import memory
from hrm_model import checkpoint, hrm
from hrm_model.config import HRMConfig
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_train import batches, hardware, loop
from hrm_train.recipe import Recipe, config_for, recipe_for

GAIN = 0.7
"""On the matrices of both levels: a fresh model amplifies rounding so much that equal steps would part within three."""
CHECKED_STEPS = 5
NUM_PUZZLES = 64
LOSS_TOLERANCE = 1e-5
COLUMNS = [
    ("trainer", "{name}"),
    ("equal work", "{equal_work}"),
    ("samples/s", "{samples_per_s:.1f}"),
    ("ms a step", "{step_ms:.1f}"),
    ("ratio", RATIO),
]
LEGEND = (
    "sample: one puzzle for one segment; ratio: samples/s beside the plain step of the same round, median and (in "
    "brackets) quartiles;\nequal work: the first losses, from equal weights, are the plain step's to "
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
    equal_work: bool = True  # must have the plain trainer's losses

    @property
    def samples_per_step(self) -> int:
        return self.recipe.batch_size * self.recipe.window


def contestants(
    preset: str, puzzle_name: str, data: Path, *, batch_size: int, num_threads: int | None, compiled: bool
) -> list[TrainerUnderTest]:
    """The published step written plainly, the same step by our trainer, and the preset's own recipe.

    Their rows come from `data`, a data set to make.
    """
    puzzle = registry.get(puzzle_name)
    own = config_for(preset, puzzle, 1)
    build(DataRecipe(puzzle=puzzle.name, num_train=NUM_PUZZLES, num_test=1, difficulty=puzzle.difficulties[0]), data)
    plain = TrainerUnderTest(
        name="published step, plain",
        is_ours=False,
        config=replace(own, halt_rule="difference", max_segments=16),
        recipe=replace(recipe_for("published", puzzle, batch_size), augment=False),
        data=data,
        num_threads=num_threads or torch.get_num_threads(),
    )
    same = replace(plain, name="published step, our trainer", is_ours=True)
    preferred = replace(
        same,
        name="our recipe: q_halt alone, no second pass",
        config=replace(own, halt_rule="q_halt"),
        recipe=replace(recipe_for(preset, puzzle, batch_size), continue_loss=False),
        equal_work=False,
    )
    chosen = [same, preferred]
    return [plain, *chosen, *(replace(one, name=f"{one.name}, compiled", compile=True) for one in chosen if compiled)]


def measure(all_of: Sequence[TrainerUnderTest], rounds: Rounds) -> list[Row]:
    """A row for each trainer, see `speeds`. Refuses (ValueError) where equal work does not give equal losses."""

    def require_equal(losses: Sequence[Sequence[float]]) -> None:
        for one, found in zip(all_of, losses, strict=True):
            gap = float(np.abs(np.subtract(found, losses[0])).max())
            if one.equal_work and not gap <= LOSS_TOLERANCE:
                raise ValueError(
                    f"{one.name!r} has the losses {found} where the plain step has {losses[0]}, so the work is not "
                    "equal; report this as a fault of the benchmark"
                )

    tell(f"starting {len(all_of)} trainers and comparing their first {CHECKED_STEPS} losses")
    return speeds(all_of, take_turns([partial(_prepared, one) for one in all_of], rounds, require_equal))


def speeds(all_of: Sequence[TrainerUnderTest], seconds_RC: NDArray[np.float64]) -> list[Row]:
    """A row for each trainer: medians over the rounds, and ratios to the first one taken inside a round."""
    rates_RC = np.array([one.samples_per_step for one in all_of]) / seconds_RC
    ratios = beside_first(rates_RC)
    return [
        {
            "name": one.name,
            "equal_work": one.equal_work,
            "samples_per_s": float(np.median(rates_RC[:, index])),
            "step_ms": 1e3 * float(np.median(seconds_RC[:, index])),
            **ratios[index],
        }
        for index, one in enumerate(all_of)
    ]


def _prepared(contestant: TrainerUnderTest) -> tuple[list[float], Callable[[], float]]:
    """The first losses, and the step."""
    torch.set_num_threads(contestant.num_threads)
    step = stepper(contestant)
    if contestant.is_ours:
        memory.keep_freed_memory()
    return [step() for _ in range(CHECKED_STEPS)], step


def stepper(contestant: TrainerUnderTest) -> Callable[[], float]:
    """A function that trains one step and returns its loss; equal contestants start from equal weights."""
    recipe, config = contestant.recipe, contestant.config
    puzzle = registry.get(recipe.puzzle)
    source = batches.open_source(contestant.data, "train", puzzle)
    feed = batches.Feed(source, puzzle, seed=recipe.seed, augment=recipe.augment)
    model = _start(config)
    if not contestant.is_ours:
        plain = PlainHRM(config)
        plain.load_state_dict(model.state_dict())
        baseline = PlainTrainer(plain, feed, recipe)
        return baseline.step
    trainer = loop.Trainer(model, feed, recipe, replace(hardware.PRESETS["cpu"], compile=contestant.compile))
    return lambda: float(trainer.step().loss)


@torch.no_grad()
def _start(config: HRMConfig) -> hrm.HRM:
    torch.manual_seed(0)
    model = hrm.HRM(config)
    for level in model.levels:
        for weights in level.parameters():
            weights *= GAIN
    return model


def segment_step(path: Path, tokens_BT: NDArray[np.int32], num_threads: int, *, compiled: bool) -> Callable[[], object]:
    """A function that runs one more segment of all puzzles; its answers and halting margins are computed as well."""
    torch.set_num_threads(num_threads)
    model, _ = checkpoint.load(checkpoint.resolve(path))
    model.eval()

    def run(carry: hrm.Carry) -> tuple[hrm.Carry, torch.Tensor, torch.Tensor]:
        output = model.think(carry, tokens, vector_BE)
        return output.carry, output.logits_BTV.argmax(-1), model.margin(output)

    segment = torch.compile(run) if compiled else run
    tokens, vector_BE = torch.from_numpy(tokens_BT), model.puzzle_table[torch.zeros(len(tokens_BT), dtype=torch.long)]
    carry = hrm.Carry(*(state.clone() for state in model.start(len(tokens_BT))))

    @torch.no_grad()
    def step() -> object:
        nonlocal carry
        carry, *answers = segment(carry)
        return answers

    return step
