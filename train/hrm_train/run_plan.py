"""The record of what a run will do, in `run.json` of its directory, and the trainer of a record.

A resume needs nothing else.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from hrm_host import atomic
from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig, record_of
from hrm_model.families import model_of, num_parameters_of
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import open_split
from hrm_puzzles.puzzle import Puzzle
from hrm_train import distributed, memory
from hrm_train.hardware import Hardware, prepare
from hrm_train.loop import Trainer
from hrm_train.options import Intervals
from hrm_train.recipe import Recipe

T = TypeVar("T")
Row = dict[str, Any]

SETTINGS = "run.json"

# Products of a run. One with 2e10 took 20 CPU seconds without torch.compile, 111 with it.
WORTH_COMPILING = 1e12
NAME_BYTES = 7  # of a variant of an ARC task, compressed, at most
SMALL = 8_000_000  # parameters; models below it use the machine's small_rows_*


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that determines a run, and the machine that it was planned for."""

    run: Path
    data: Path
    hardware: Hardware
    config: HRMConfig
    recipe: Recipe
    init: Path | None = None
    intervals: Intervals = field(default_factory=Intervals)
    events: tuple[Row, ...] = ()  # what resumes changed: step, samples, changes

    @property
    def is_new(self) -> bool:
        """Whether the run's directory lacks a plan."""
        return not (self.run / SETTINGS).exists()

    @property
    def puzzle(self) -> Puzzle:
        return registry.get(self.recipe.puzzle)

    @property
    def num_steps(self) -> int:
        return -(-self.recipe.total_samples // (self.recipe.batch_size * self.recipe.window))

    @property
    def num_parameters(self) -> int:
        """The learned weights; counting them imports a part of PyTorch, which takes two seconds."""
        return num_parameters_of(self.config)

    @property
    def is_worth_compiling(self) -> bool:
        """Whether the products of the run take a CPU much longer than torch.compile.

        It counts each weight once for every vector and low step. So it depends on the plan alone,
        and a repeated run has the same losses.
        """
        config = self.config
        products_per_sample = (
            self.num_parameters
            * config.num_positions
            * config.num_symbols
            * config.high_cycles
            * config.low_cycles
        )
        return self.recipe.total_samples * products_per_sample >= WORTH_COMPILING

    @property
    def micro_batch(self) -> int:
        # A TRM keeps 14 blocks of a segment, an HRM only 8, and a TRM's mixers are wide.
        is_trm = self.config.arch == "trm"
        is_small = self.num_parameters < SMALL and not is_trm
        wanted = self.hardware.rows(self.config.seq_len, small=is_small)
        if is_trm:
            wanted = max(1, wanted // 2)
        slots = distributed.ranks().slots(self.recipe.batch_size)
        return min(wanted, len(slots))

    def memory(self) -> memory.Estimate:
        """What one rank needs of its device, from a probe that takes about a second."""
        world = distributed.ranks().world
        return memory.estimate(
            self.config,
            self.recipe,
            dtype=self.hardware.dtype,
            slots=self.recipe.batch_size // world,
            micro_batch=self.micro_batch,
            recompute=self.hardware.recompute,
            world=world,
        )

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on the disk, with the names of the puzzle ids."""
        return self.memory().checkpoint + NAME_BYTES * self.config.num_puzzle_ids

    def with_micro_batch(self, rows: int) -> "RunPlan":
        return replace(self, hardware=replace(self.hardware, micro_batch=rows))

    def with_puzzle_ids(self, count: int) -> "RunPlan":
        return replace(self, config=replace(self.config, num_puzzle_ids=count))

    @property
    def values(self) -> dict[str, Any]:
        """All that options decide, as JSON values by the name of the setting."""
        values = {"data": self.data.as_posix(), "init": self.init and self.init.as_posix()}
        for record in (self.config, self.recipe, self.hardware, self.intervals):
            values |= asdict(record)
        return values

    def to_json(self) -> str:
        values = asdict(self)
        del values["run"]
        values["model"] = values.pop("config")
        values["absolute_data"] = self.data.absolute()
        return json.dumps(values, indent=2, default=Path.as_posix) + "\n"


def write_plan(plan: RunPlan) -> None:
    """Creates the run's directory with its plan."""
    plan.run.mkdir(parents=True, exist_ok=True)
    atomic.write_text(plan.run / SETTINGS, plan.to_json())


def read_plan(run: Path, machine: Hardware | None = None) -> RunPlan:
    """Reads the plan of a run; `machine` replaces the one in it.

    Raises ValueError if the directory lacks a plan.
    """
    file = run / SETTINGS
    if not file.exists():
        raise ValueError(
            f"{run} holds no run; name another, or begin it with hrm-train --run {run}"
        )
    values = checkpoint.read_json(file)
    try:
        init = values["init"]
        data = Path(values["data"])
        absolute = Path(values["absolute_data"])
        if absolute.exists() and absolute != data.absolute():  # begun in another directory
            data = absolute
        return RunPlan(
            run=run,
            data=data,
            hardware=machine or _record(Hardware, values["hardware"]),
            recipe=_record(Recipe, values["recipe"]),
            config=_record(HRMConfig, values["model"]),
            init=init and Path(init),
            intervals=_record(Intervals, values["intervals"]),
            events=_events_in(values),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{file} is not as hrm-train writes it ({error}); correct it or start another --run"
        ) from error


def _record(kind: type[T], values: Mapping[str, Any]) -> T:
    """As `record_of`; raises ValueError for a missing key too, which must not become a default."""
    record = record_of(kind, values)
    missing = sorted(vars(record).keys() - values.keys())
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return record


def _events_in(values: Row) -> tuple[Row, ...]:
    """What resumes changed; raises an error for what `change_text` cannot show."""
    events = tuple(values.get("events", ()))
    for event in events:
        change_text(event)
    return events


def change_text(event: Row) -> str:
    """What a resume changed, as "changed at sample 64: lr: 0.001 -> 0.0005"."""
    changes = [f"{name}: {old} -> {new}" for name, (old, new) in event["changes"].items()]
    return f"changed at sample {event['samples']:,}: {', '.join(changes)}"


def trainer_from(plan: RunPlan) -> Trainer:
    """Returns the trainer at its first step; `Trainer.restore` moves it to a checkpoint.

    Raises ValueError if the planned device is missing.
    """
    recipe = plan.recipe
    prepare(plan.hardware)
    source = open_split(plan.data, "train", plan.puzzle)
    torch.manual_seed(recipe.seed)
    model = model_of(plan.config)
    # A checkpoint of the run itself replaces these weights anyway.
    if plan.init and not checkpoint.steps_of(plan.run):
        geometry.start_from(plan.init, model, source)
    return Trainer(model, source, recipe, plan.hardware, micro_batch=plan.micro_batch)
