"""What options beside `--resume` change in a run. Every change is recorded in `run.json`."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from hrm_model import checkpoint
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.for_training import meta_for
from hrm_train import checkpoints, distributed
from hrm_train.draft import samples_a_pass, settings_of
from hrm_train.hardware import Say
from hrm_train.options import Intervals, TrainOptions
from hrm_train.recipe import Recipe, config_for, in_samples, with_settings
from hrm_train.run_plan import Event, RunPlan, read_plan, write_plan

FIXED = ("puzzle", "optimizer", "seed")
"""Settings of a recipe that its checkpoints depend on."""


def with_changes(plan: RunPlan, options: TrainOptions, say: Say) -> RunPlan:
    """Returns the plan of a resumed run with the changes that its options request.

    The first rank records them in `run.json`; the caller must hold the run's lock. Raises
    ValueError, and changes nothing, if an option names what cannot change.
    """
    ranks = distributed.ranks()
    if ranks.is_first:
        _record_changes(plan, options, say)
    ranks.wait()
    return read_plan(plan.run)


def intervals_of(options: TrainOptions, before: Intervals) -> Intervals:
    """The intervals that the command line names; the others as in `before`."""
    named: dict[str, Any] = {}
    for field in dataclasses.fields(Intervals):
        if _is_named(options.context, field.name):
            named[field.name] = getattr(options, field.name)
    return dataclasses.replace(before, **named)


def _is_named(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _record_changes(plan: RunPlan, options: TrainOptions, say: Say) -> None:
    recorded = read_plan(plan.run)
    changed = _changed(plan, recorded, options)
    changes = _differences(_values(recorded), _values(changed))
    start = checkpoints.start_of(plan.run)
    if options.data is not None and start is not None:
        changes |= _changed_data(changed, start, is_allowed=options.data_changed)
    if not changes:
        return
    step, samples = _progress(start)
    event = Event(step=step, samples=samples, changes=changes)
    write_plan(dataclasses.replace(changed, events=(*recorded.events, event)))
    say(event.summary())


def _changed(plan: RunPlan, recorded: RunPlan, options: TrainOptions) -> RunPlan:
    """The plan with the options that are given; raises ValueError for what cannot change."""
    named_here = dataclasses.replace(options, recipe=None)  # the run already has the recipe's
    settings = settings_of(named_here)
    data = options.data or plan.data
    puzzle = registry.get(plan.recipe.puzzle)
    count_samples = partial(samples_a_pass, data, puzzle, options.examples)
    in_recipe = in_samples(settings.recipe, plan.recipe, count_samples)
    recipe = with_settings(plan.recipe, in_recipe)
    hardware = plan.hardware
    if not hardware.threads:  # --hw names a machine, and the threads belong to the run
        hardware = dataclasses.replace(hardware, threads=recorded.hardware.threads)
    _require_same_model(plan, options, settings.model)
    _require_same_basis(plan, recipe)
    distributed.ranks().slots(recipe.batch_size)
    if options.init_path is not None and options.init_path != plan.init:
        raise _fixed(plan, "--init", plan.init, options.init_path)
    return dataclasses.replace(
        plan,
        data=data,
        recipe=recipe,
        hardware=with_settings(hardware, settings.machine),
        intervals=intervals_of(options, plan.intervals),
    )


def _require_same_model(plan: RunPlan, options: TrainOptions, settings: dict[str, str]) -> None:
    wanted = plan.config
    if options.preset and plan.init is None:
        puzzle = registry.get(plan.recipe.puzzle)
        wanted = config_for(options.preset, puzzle, plan.config.num_puzzle_ids)
    wanted = with_settings(wanted, settings)
    for field in dataclasses.fields(wanted):
        old = getattr(plan.config, field.name)
        new = getattr(wanted, field.name)
        if old != new:
            raise _fixed(plan, field.name, old, new)


def _require_same_basis(plan: RunPlan, recipe: Recipe) -> None:
    for name in FIXED:
        old = getattr(plan.recipe, name)
        new = getattr(recipe, name)
        if old != new:
            raise _fixed(plan, name, old, new)


def _fixed(plan: RunPlan, name: str, old: object, new: object) -> ValueError:
    return ValueError(
        f"{name} is {_text(old)} in {plan.run} and cannot become {_text(new)}; "
        f"omit it, or start another --run with --init {plan.run}"
    )


def _text(value: object) -> str:
    return str(value) if isinstance(value, Path) else repr(value)


def _changed_data(plan: RunPlan, start: Path, *, is_allowed: bool) -> dict[str, list[Any]]:
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


def _values(plan: RunPlan) -> dict[str, Any]:
    """All that a resume may change, by name."""
    values = dataclasses.asdict(plan.recipe)
    values |= dataclasses.asdict(plan.intervals)
    for key, value in dataclasses.asdict(plan.hardware).items():
        values[f"hw_{key}" if key in values else key] = value
    values["data"] = plan.data.as_posix()
    return values


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    changes: dict[str, list[Any]] = {}
    for key, old in before.items():
        new = after[key]
        if old != new:
            changes[key] = [old, new]
    return changes


def _progress(start: Path | None) -> tuple[int, int]:
    """The step and the samples of a checkpoint; 0 without one."""
    if start is None:
        return 0, 0
    progress = checkpoint.read_json(start / checkpoints.VALUES)["progress"]
    return progress["step"], progress["samples"]
