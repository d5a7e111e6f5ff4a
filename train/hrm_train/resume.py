"""What options beside `--resume` change in a run. `run.json` records every change as an event."""

import dataclasses
from pathlib import Path
from typing import Any

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.for_training import meta_for
from hrm_train import checkpoints
from hrm_train.options import TrainOptions
from hrm_train.plan import with_settings
from hrm_train.recipe import config_for
from hrm_train.run_plan import Changes, Event, RunPlan, read_plan

FIXED = {*HRMConfig.__dataclass_fields__, "puzzle", "optimizer", "seed", "init"}
"""Settings that the checkpoints of a run depend on."""


def with_changes(plan: RunPlan, options: TrainOptions) -> RunPlan:
    """Returns the plan of a resumed run; changes that its options request are its last event.

    Writes nothing. The caller must hold the run's lock. Raises ValueError if an option names what
    cannot change.
    """
    recorded = read_plan(plan.run)
    changed = _changed(plan, recorded, options)
    changes = _differences(recorded.values, changed.values)
    for name in changes:
        if name in FIXED:
            raise _fixed(plan, name, *changes[name])
    start = checkpoints.start_of(plan.run)
    if options.data is not None and start is not None:
        changes |= _changed_data(changed, start, is_allowed=options.data_changed)
    if not changes:
        return changed
    step, samples = _progress(start)
    event = Event(step=step, samples=samples, changes=changes)
    return dataclasses.replace(changed, events=(*recorded.events, event))


def _changed(plan: RunPlan, recorded: RunPlan, options: TrainOptions) -> RunPlan:
    hardware = plan.hardware
    if not hardware.threads:  # --hw names a machine, and the threads belong to the run
        hardware = dataclasses.replace(hardware, threads=recorded.hardware.threads)
    config = plan.config
    if options.preset and plan.init is None:
        puzzle = registry.get(plan.recipe.puzzle)
        config = config_for(options.preset, puzzle, plan.config.num_puzzle_ids)
    changed = dataclasses.replace(
        plan,
        data=options.data or plan.data,
        init=options.init_path or plan.init,
        config=config,
        hardware=hardware,
        intervals=options.intervals_after(plan.intervals),
    )
    named_here = dataclasses.replace(options, recipe=None)  # the run already has the recipe's
    return with_settings(changed, named_here)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Changes:
    changes: Changes = {}
    for key, old in before.items():
        new = after[key]
        if old != new:
            changes[key] = [old, new]
    return changes


def _fixed(plan: RunPlan, name: str, old: object, new: object) -> ValueError:
    return ValueError(
        f"{name} is {old!r} in {plan.run} and cannot become {new!r}; "
        f"omit it, or start another --run with --init {plan.run}"
    )


def _changed_data(plan: RunPlan, start: Path, *, is_allowed: bool) -> Changes:
    """The old and new fingerprints if a resume uses other data than the run; otherwise empty."""
    puzzle = registry.get(plan.recipe.puzzle)
    num_puzzle_ids = meta_for(puzzle, plan.data, "train").num_puzzle_identifiers
    if num_puzzle_ids != plan.config.num_puzzle_ids:
        raise _fixed(plan, "num_puzzle_ids", plan.config.num_puzzle_ids, num_puzzle_ids)
    before = checkpoint.read_json(start / checkpoint.META).get("data_fingerprint")
    now = datasets.fingerprint(plan.data)
    if before in (None, now):
        return {}
    if not is_allowed:
        raise ValueError(
            f"{plan.data} is not the data set of {plan.run}, by its fingerprint; "
            "name the same data, or add --data-changed to train on this one from here"
        )
    return {"data_fingerprint": [before, now]}


def _progress(start: Path | None) -> tuple[int, int]:
    """The step and the samples of a checkpoint; 0 without one."""
    if start is None:
        return 0, 0
    progress = checkpoint.read_json(start / checkpoints.VALUES)["progress"]
    return progress["step"], progress["samples"]
