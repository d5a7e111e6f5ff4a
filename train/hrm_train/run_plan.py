"""The record of what a run will do, in `run.json` of its directory. A resume needs nothing else."""

import bisect
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hrm_host import atomic
from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_train import distributed, memory, status
from hrm_train.hardware import GIGABYTE, Hardware
from hrm_train.options import Intervals
from hrm_train.recipe import Recipe

Changes = dict[str, list[Any]]  # old and new value by name
# Products of a run. One with 2e10 took 20 CPU seconds without torch.compile, 111 with it.
WORTH_COMPILING = 1e12
SMALL = 8_000_000  # parameters; models below it use the machine's small_rows_*


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a resume changed, and when."""

    step: int
    samples: int
    changes: Changes

    def summary(self) -> str:
        changes = status.changes_text(self.changes)
        return f"changed at sample {self.samples:,}: {changes}"


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
    events: tuple[Event, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether the run's directory lacks a plan."""
        return not (self.run / status.SETTINGS).exists()

    @property
    def changed(self) -> set[str]:
        """Names of all settings that any resume changed."""
        names: set[str] = set()
        for event in self.events:
            names.update(event.changes)
        return names

    @property
    def num_steps(self) -> int:
        return -(-self.recipe.total_samples // (self.recipe.batch_size * self.recipe.window))

    @property
    def num_parameters(self) -> int:
        """The learned weights, counted on the meta device; its import takes two seconds."""
        with torch.device("meta"):
            return model_of(self.config).num_parameters

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
        return self.micro_batch_of(self.num_parameters)

    def micro_batch_of(self, num_parameters: int) -> int:
        """The micro-batch of a model with this number of parameters."""
        # A TRM keeps 14 blocks of a segment, an HRM only 8, and a TRM's mixers are wide.
        is_trm = self.config.arch == "trm"
        is_small = num_parameters < SMALL and not is_trm
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


def filled(plan: RunPlan, share: float) -> RunPlan:
    """The plan with the largest micro-batch whose estimate fits a share of the card's memory.

    The batch size and the learning rates do not change. Raises ValueError if the machine's memory
    is unknown.
    """
    machine = plan.hardware
    if not machine.memory_gb:
        raise ValueError(
            f"--fill needs a card of known memory, and {machine.name} is not one; omit it"
        )
    limit = share * machine.memory_gb * GIGABYTE

    def fits(rows: int) -> bool:
        return plan.with_micro_batch(rows).memory().total <= limit

    num_slots = len(distributed.ranks().slots(plan.recipe.batch_size))
    rows = bisect.bisect_right(range(1, num_slots + 1), False, key=lambda rows: not fits(rows))
    return plan.with_micro_batch(max(1, rows))


def write_plan(plan: RunPlan) -> None:
    """Creates the run's directory with its plan."""
    plan.run.mkdir(parents=True, exist_ok=True)
    atomic.write_text(plan.run / status.SETTINGS, plan.to_json())


def read_plan(run: Path, machine: Hardware | None = None) -> RunPlan:
    """Reads the plan of a run; `machine` replaces the one in it.

    Raises ValueError if the directory lacks a plan.
    """
    file = run / status.SETTINGS
    if not file.exists():
        raise ValueError(f"{run} holds no run to resume; start it without --resume")
    try:
        return _plan_from(checkpoint.read_json(file), run, machine)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is not as hrm-train writes it ({error}); start another --run"
        ) from error


def _plan_from(values: dict[str, Any], run: Path, machine: Hardware | None) -> RunPlan:
    init = values["init"]
    return RunPlan(
        run=run,
        data=_data_of(values),
        hardware=machine or Hardware(**values["hardware"]),
        recipe=Recipe.from_mapping(values["recipe"]),
        config=HRMConfig.from_mapping(values["model"]),
        init=init and Path(init),
        intervals=Intervals(**values.get("intervals", {})),  # older runs lack intervals
        events=tuple(Event(**event) for event in values.get("events", [])),
    )


def _data_of(values: dict[str, Any]) -> Path:
    """The data of a run: the path as it was given, or the absolute one from another directory."""
    given = Path(values["data"])
    absolute = Path(values.get("absolute_data", given))  # older runs lack it
    if absolute.exists() and absolute != given.absolute():
        return absolute
    return given
