"""Turn the options of `hrm-train` into a plan: preset, recipe and machine, with settings."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.puzzle import Puzzle
from hrm_train import batches, distributed
from hrm_train.hardware import Hardware, threads_for, usable_cores
from hrm_train.options import Intervals, PlanOptions
from hrm_train.recipe import (
    Recipe,
    Values,
    config_for,
    in_samples,
    recipe_for,
    with_settings,
)
from hrm_train.run_plan import RunPlan

NOT_SETTINGS = ("puzzle", "preset", "data")  # keys of a named recipe that other options set
# The puzzle and its data set decide these fields, so --set rejects them.
DECIDED_BY_DATA = {
    "vocab_size",
    "seq_len",
    "num_puzzle_ids",
    "puzzle",
    "board",
    "num_symbols",
    "num_fixed",
}
# The choice of a machine determines these.
DECIDED_BY_MACHINE = {
    "name",
    "device",
    "gpu",
    "memory_gb",
    "preset",
    "target_batch",
    "refusal",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The key=value settings of a run, by the record that they change."""

    model: dict[str, str]
    recipe: dict[str, str]
    machine: dict[str, str]


def draft(options: PlanOptions, machine: Hardware) -> RunPlan:
    """Returns a plan for one puzzle id; needs neither the data set nor the machine."""
    puzzle = options.kind
    settings = settings_of(options)
    preset = _preset(options, machine)
    usual = recipe_for(preset, puzzle, machine.target_batch)
    count_samples = partial(samples_a_pass, options.data_path, puzzle, options.examples)
    in_recipe = in_samples(settings.recipe, usual, count_samples)
    recipe = with_settings(usual, in_recipe)
    distributed.ranks().slots(recipe.batch_size)  # reject a bad batch before any work
    config = with_settings(_sizes(preset, puzzle, options.init_path), settings.model)
    hardware = with_settings(machine, settings.machine)
    plan = RunPlan(
        run=options.run_path,
        data=options.data_path,
        hardware=hardware,
        config=config,
        recipe=recipe,
        init=options.init_path,
    )
    if hardware.device == "cpu" and not hardware.threads:
        threads = threads_for(plan.num_parameters, usable_cores())
        return replace(plan, hardware=replace(hardware, threads=threads))
    return plan


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


def settings_of(options: PlanOptions) -> Settings:
    """The settings of the named recipe, then those of --set, then --arch; later ones win.

    Raises ValueError for a key that no record has.
    """
    texts: list[str] = []
    not_settings = {*NOT_SETTINGS, *Intervals.__dataclass_fields__}
    for key, value in options.named_settings.items():
        if key not in not_settings:
            texts.append(f"{key}={value}")
    texts += options.settings or []
    if options.arch:
        texts.append(f"arch={options.arch}")
    if options.threads:
        texts.append(f"threads={options.threads}")
    pairs = _pairs(texts)
    model = _known(pairs, _keys(HRMConfig))
    if model.get("arch") == "transformer":
        model = {"max_segments": "1", **model}
    return Settings(
        model=model,
        recipe=_known(pairs, _keys(Recipe)),
        machine=_known(pairs, _keys(Hardware)),
    )


def _keys(record: type[HRMConfig | Recipe | Hardware]) -> set[str]:
    names = {field.name for field in fields(record)}
    return names - DECIDED_BY_DATA - DECIDED_BY_MACHINE


def _known(pairs: dict[str, str], keys: set[str]) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if key in keys}


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    known = _keys(HRMConfig) | _keys(Recipe) | _keys(Hardware)
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text!r} has no '='; write --set key=value")
        if key not in known:
            raise ValueError(
                f"unknown setting {key!r}; known settings are {', '.join(sorted(known))}"
            )
        pairs[key] = value
    return pairs
