"""Plans a run once: turns the options of `hrm-train` into a plan, and writes it.

plan = open_plan(PlanOptions(puzzle="arc", hw="rtx4090"))  # builds data/arc if it is absent
trainer = trainer_from(plan)
"""

import os
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.data.for_training import build_if_absent, meta_for
from hrm_puzzles.puzzle import Puzzle
from hrm_train import batches, distributed, status
from hrm_train.hardware import Hardware, Say, hardware_from_name, threads_for, usable_cores
from hrm_train.optim import require_lion
from hrm_train.options import Intervals, PlanOptions
from hrm_train.recipe import Recipe, Values, config_for, in_samples, recipe_for, with_texts
from hrm_train.run_plan import RunPlan, filled, read_plan, write_plan

Adjust = Callable[[RunPlan], RunPlan]

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
# The records of a plan that hold settings, by their name in it.
RECORDS = {"config": HRMConfig, "recipe": Recipe, "hardware": Hardware}


def open_plan(options: PlanOptions, say: Say = print, adjust: Adjust | None = None) -> RunPlan:
    """Returns the plan of a run as `plan_of` does, and writes that of a new run."""
    plan = plan_of(options, say, adjust)
    ranks = distributed.ranks()
    if ranks.is_first and plan.is_new:
        write_plan(plan)
    ranks.wait()
    return plan


def plan_of(options: PlanOptions, say: Say = print, adjust: Adjust | None = None) -> RunPlan:
    """Returns the plan of a new run, or the plan of the run to resume.

    Builds the usual data set of the puzzle, or of the named recipe, if it is absent. `adjust`
    changes a new plan. With several ranks the first one plans for all.
    """
    machine = None  # the plan's machine, with its settings
    if not (options.resume or _was_restarted(options.run_path)):
        return distributed.ranks().first(lambda: _new(options, say, adjust))
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
    return has_failed and (run / status.SETTINGS).exists()


def _new(options: PlanOptions, say: Say, adjust: Adjust | None) -> RunPlan:
    run = options.run_path
    if (run / status.SETTINGS).exists():
        raise ValueError(
            f"{run} already holds a run; add --resume to continue it or choose another --run"
        )
    machine = hardware_from_name(options.hw or "auto")
    plan = draft(options, machine)
    if plan.recipe.optimizer == "lion":
        require_lion()
    puzzle = options.kind
    if options.data is None:
        build_if_absent(puzzle, plan.data, options.examples, say, may_fill_disk=options.yes)
    meta = meta_for(puzzle, plan.data, "train")
    plan = plan.with_puzzle_ids(meta.num_puzzle_identifiers)
    if options.fill is not None:
        plan = filled(plan, options.fill)
    if adjust is not None:
        plan = adjust(plan)
    return plan


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
    puzzle = registry.get(plan.recipe.puzzle)
    count_samples = partial(samples_a_pass, plan.data, puzzle, options.examples)
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
        return batches.open_source(data, "train", puzzle).num_groups
    count = examples.get("csv_sample") or examples.get("num_train")
    if count:
        return count
    if isinstance(puzzle, Arc) or "source" in examples:
        raise ValueError(
            f"passes are counted on the data set, but {data} does not exist; "
            "build it first, or give samples"
        )
    return usual_counts(puzzle)[0]
