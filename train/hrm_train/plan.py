"""Plans a run once: turns the options of `hrm-train` into a plan.

plan = plan_of(PlanOptions(puzzle="arc", hw="rtx4090"))  # builds data/arc if it is absent
trainer = trainer_from(plan)
"""

import json
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.arc.tasks import read_tasks
from hrm_puzzles.arc.variants import Pair
from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.data.for_training import build_if_absent
from hrm_puzzles.puzzle import Puzzle
from hrm_train import checkpoints, distributed
from hrm_train.distributed import say
from hrm_train.hardware import Hardware, hardware_from_name, threads_for, usable_cores
from hrm_train.optim import require_lion
from hrm_train.options import Intervals, PlanOptions, TrainOptions
from hrm_train.recipe import Recipe, Values, config_for, in_samples, recipe_for, with_texts
from hrm_train.run_plan import SETTINGS, RunPlan, read_plan
from hrm_train.tuning import filled

Changes = dict[str, list[Any]]  # old and new value by name

# Keys of a named recipe that are no settings: other options set them.
NOT_SETTINGS = {"puzzle", "preset", "data", *Intervals.__dataclass_fields__}
# The puzzle, its data set or the choice of a machine decides these fields, so --set rejects them.
DECIDED = {
    "vocab_size",
    "seq_len",
    "num_puzzle_ids",
    "puzzle",
    "board",
    "num_symbols",
    "num_fixed",
    "name",
    "device",
    "gpu",
    "memory_gb",
    "preset",
    "target_batch",
    "refusal",
}
# Settings that the checkpoints of a run depend on; a resume cannot change them.
FIXED = {*HRMConfig.__dataclass_fields__, "puzzle", "optimizer", "seed", "init"}
# The records of a plan that hold settings, by their name in it.
RECORDS = {"config": HRMConfig, "recipe": Recipe, "hardware": Hardware}


def plan_of(options: PlanOptions) -> RunPlan:
    """Returns the plan of a new run, or the plan of the run to resume (then see `with_changes`).

    Builds the usual data set of the puzzle, or of the named recipe, if it is absent. With several
    ranks the first one plans for all.
    """
    if not (options.resume or _was_restarted(options.run_path)):
        return distributed.ranks().of_first(partial(_new, options))
    machine = None  # the plan's machine, with its settings
    if options.hw:
        machine = hardware_from_name(options.hw)
    plan = read_plan(options.run_path, machine)
    puzzle = plan.recipe.puzzle
    if options.puzzle and options.puzzle != puzzle:
        raise ValueError(
            f"{plan.run} trains {puzzle}, and --puzzle {options.puzzle} would change that; "
            "omit it, or start another --run without --resume"
        )
    return plan


def _was_restarted(run: Path) -> bool:
    """Whether torchrun started any rank again, after a failure of the same run.

    Each machine counts only the failures of its own ranks.
    """
    num_restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    has_failed = distributed.ranks().any(num_restarts > 0)
    return has_failed and (run / SETTINGS).exists()


def _new(options: PlanOptions) -> RunPlan:
    run = options.run_path
    if (run / SETTINGS).exists():
        raise ValueError(
            f"{run} already holds a run; add --resume to continue it or choose another --run"
        )
    machine = hardware_from_name(options.hw or "auto")
    plan = draft(options, machine)
    if plan.recipe.optimizer == "lion":
        require_lion()
    puzzle = options.kind
    if options.tasks_file is not None:
        _build_from_tasks(options.tasks_file, puzzle, plan.data)
    elif options.data is None:
        build_if_absent(puzzle, plan.data, options.examples, say, may_fill_disk=options.yes)
    split = datasets.open_split(plan.data, "train", puzzle)
    plan = plan.with_puzzle_ids(split.num_puzzle_ids)
    if options.fill is not None:
        plan = filled(plan, options.fill)
    return plan


def _build_from_tasks(file: Path, puzzle: Puzzle, data: Path) -> None:
    """Builds a data set of ARC tasks in their turns, unless it exists.

    It trains on the demonstrations. A task without test answers is validated on them too.
    """
    if not isinstance(puzzle, Arc):
        raise ValueError(f"--data {file} holds ARC tasks, but {puzzle.name} is not ARC")
    if data.exists():
        return
    say(f"{data} is absent: building it from the demonstrations in {file}")
    tasks: dict[str, dict[str, list[Any]]] = {}
    for task in read_tasks(str(file)):
        demonstrations = _as_json(task.demonstrations)
        tests = _as_json(task.tests) or demonstrations
        tasks[task.name] = {"train": demonstrations, "test": tests}
    with TemporaryDirectory() as folder:
        whole = Path(folder) / file.name
        whole.write_text(json.dumps(tasks))
        recipe = ArcRecipe(
            puzzle=puzzle.name, dataset=str(whole), augment=7, keep_colors=True, hold_out_all=True
        )
        build_arc(recipe, puzzle, data)


def _as_json(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [{"input": asked.tolist(), "output": answer.tolist()} for asked, answer in pairs]


def draft(options: PlanOptions, machine: Hardware) -> RunPlan:
    """Returns a plan for one puzzle id; needs neither the data set nor the machine."""
    puzzle = options.kind
    preset = _preset(options, machine)
    plan = RunPlan(
        run=options.run_path,
        data=options.data_path,
        hardware=machine,
        config=_sizes(preset, puzzle, options.init_path),
        recipe=recipe_for(preset, puzzle, machine.target_batch),
        init=options.init_path,
    )
    if plan.hardware.device != "cpu":
        return with_settings(plan, options)
    asked = with_settings(plan, options)  # the length of the run decides whether it is compiled
    machine = replace(machine, compile=machine.compile and asked.is_worth_compiling)
    plan = with_settings(replace(plan, hardware=machine), options)
    threads = plan.hardware.threads or threads_for(plan.num_parameters, usable_cores())
    return replace(plan, hardware=replace(plan.hardware, threads=threads))


def _preset(options: PlanOptions, machine: Hardware) -> str:
    """The preset that is named, or the machine's. Relational blocks exist only in an HRM."""
    if options.named_preset:
        return options.named_preset
    if options.arch and machine.preset == "relational":
        return "small"
    return machine.preset


def _sizes(preset: str, puzzle: Puzzle, init: Path | None) -> HRMConfig:
    """The sizes of a preset, or of the checkpoint to start from on this puzzle's board."""
    if init is None:
        return config_for(preset, puzzle, 1)
    return geometry.config_for_training(checkpoint.load_config(init), puzzle)


def with_settings(plan: RunPlan, options: PlanOptions) -> RunPlan:
    """The plan with the settings of its options.

    Raises ValueError for a key that no record has, and for a batch that the ranks cannot share.
    """
    part_of = {field.name: part for part, record in RECORDS.items() for field in fields(record)}
    known = sorted(part_of.keys() - DECIDED)
    texts: dict[str, dict[str, str]] = {part: {} for part in RECORDS}
    for key, text in _settings_of(options).items():
        if key not in known:
            raise ValueError(f"unknown setting {key!r}; known settings are {', '.join(known)}")
        texts[part_of[key]][key] = text
    count_samples = partial(samples_a_pass, plan.data, plan.puzzle, options.examples)
    texts["recipe"] = in_samples(texts["recipe"], plan.recipe, count_samples)
    parts = {part: with_texts(getattr(plan, part), texts[part]) for part in RECORDS}
    changed = replace(plan, **parts)
    distributed.ranks().slots(changed.recipe.batch_size)
    return changed


def _settings_of(options: PlanOptions) -> dict[str, str]:
    """The settings of the named recipe, then those of --set, --arch and --threads; later ones win.

    Raises ValueError for a text without '='.
    """
    pairs: dict[str, str] = {}
    for key, value in options.named_settings.items():
        if key not in NOT_SETTINGS:
            pairs[key] = str(value)
    for text in options.settings or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text!r} has no '='; write --set key=value")
        pairs[key] = value
    if options.arch:
        pairs["arch"] = options.arch
    if options.threads:
        pairs["threads"] = str(options.threads)
    if pairs.get("arch") == "transformer":
        pairs.setdefault("max_segments", "1")
    return pairs


def samples_a_pass(data: Path, puzzle: Puzzle, examples: Values) -> int:
    """The samples of one pass: one per group of the data set, as in a published epoch.

    If the data set is absent, counts what will be built.
    """
    if data.exists():
        return datasets.open_split(data, "train", puzzle).num_groups
    count = examples.get("csv_sample") or examples.get("num_train")
    if count:
        return count
    if isinstance(puzzle, Arc) or "source" in examples:
        raise ValueError(
            f"passes are counted on the data set, but {data} does not exist; "
            "build it first, or give samples"
        )
    return usual_counts(puzzle)[0]


def with_changes(plan: RunPlan, options: TrainOptions) -> RunPlan:
    """Returns the plan of a resumed run; changes that its options request are its last event.

    Writes nothing. The caller must hold the run's lock. Raises ValueError if an option names what
    cannot change.
    """
    recorded = read_plan(plan.run)
    changed = _changed(plan, recorded, options)
    changes: Changes = {}
    now = changed.values
    for name, old in recorded.values.items():
        new = now[name]
        if new == old:
            continue
        if name in FIXED:
            raise _fixed(plan, name, old, new)
        changes[name] = [old, new]
    start = checkpoints.start_of(plan.run)
    if options.data is not None and start is not None:
        changes |= _changed_data(changed, start, is_allowed=options.data_changed)
    if not changes:
        return changed
    progress = {"step": 0, "samples": 0}
    if start is not None:
        progress = checkpoint.read_json(start / checkpoints.VALUES)["progress"]
    event = {**progress, "changes": changes}
    return replace(changed, events=(*recorded.events, event))


def _changed(plan: RunPlan, recorded: RunPlan, options: TrainOptions) -> RunPlan:
    hardware = plan.hardware
    if not hardware.threads:  # --hw names a machine, and the threads belong to the run
        hardware = replace(hardware, threads=recorded.hardware.threads)
    config = plan.config
    if options.preset and plan.init is None:
        config = config_for(options.preset, plan.puzzle, plan.config.num_puzzle_ids)
    changed = replace(
        plan,
        data=options.named_data or plan.data,
        init=options.init_path or plan.init,
        config=config,
        hardware=hardware,
        intervals=options.intervals_after(plan.intervals),
    )
    named_here = replace(options, recipe=None)  # the run already has the recipe's
    return with_settings(changed, named_here)


def _fixed(plan: RunPlan, name: str, old: object, new: object) -> ValueError:
    return ValueError(
        f"{name} is {old!r} in {plan.run} and cannot become {new!r}; "
        f"omit it, or start another --run with --init {plan.run}"
    )


def _changed_data(plan: RunPlan, start: Path, *, is_allowed: bool) -> Changes:
    """The old and new fingerprints if a resume uses other data than the run; otherwise empty."""
    num_puzzle_ids = datasets.open_split(plan.data, "train", plan.puzzle).num_puzzle_ids
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
