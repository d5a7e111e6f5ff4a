"""What a run will do, decided once and written into its directory, so that a resume needs nothing else.

plan = open_plan(PlanOptions(puzzle="arc", hw="rtx4090"))      # builds data/arc first where it is absent
trainer = trainer_from(plan)
"""

import json
import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
import typer

from hrm_host import atomic
from hrm_host.memory import GIB
from hrm_model import checkpoint, geometry
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, most_bytes
from hrm_puzzles.cli import main as hrm_data
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.puzzle import Hinted, Puzzle
from hrm_train import batches, distributed, memory, status
from hrm_train.hardware import Hardware, Say, hardware_from_name, prepare
from hrm_train.loop import Trainer
from hrm_train.options import PlanOptions
from hrm_train.recipe import Recipe, Values, config_for, in_samples, recipe_for, with_settings

SMALL = 8_000_000  # parameters, below which the table's small_rows_* hold
FACTORS = (0.5, 1, 2, 4)  # of the wanted micro-batch: what `fastest` tries, REPEATS times each
REPEATS = 3
CHECKPOINTS = 4  # the last two, the best, and the one being written
DISK_SHARE = 5  # a data set that takes one such part of the free disk is asked for
LONGEST_WARMUP = 10  # a warm-up beyond one such part of the run is said
FILLED = 0.9  # share of the device's memory that a micro-batch may fill; the rest is for fragments and other programs


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that makes a run what it is, and the machine it was planned for."""

    run: Path
    data: Path
    hardware: Hardware
    config: HRMConfig
    recipe: Recipe
    init: Path | None = None

    @property
    def micro_batch(self) -> int:
        with torch.device("meta"):
            return self.micro_batch_for(HRM(self.config))

    def micro_batch_for(self, model: HRM) -> int:
        """The same for a model that exists already: the meta device takes two seconds to import, on each resume."""
        num_parameters = sum(p.numel() for p in model.parameters())
        is_trm = self.config.arch == "trm"  # keeps 14 blocks of a segment where an HRM keeps 8, and mixers are wide
        wanted = self.hardware.rows(self.config.seq_len, small=num_parameters < SMALL and not is_trm)
        wanted = max(1, wanted // 2) if is_trm else wanted
        return min(wanted, len(distributed.ranks().slots(self.recipe.batch_size)))

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

    def disk(self) -> str:
        folder = next(path for path in self.run.absolute().parents if path.is_dir())
        size, free = self.memory().checkpoint, shutil.disk_usage(folder).free
        text = f"a checkpoint takes {size / GIB:.2f} GiB, {CHECKPOINTS} at once at most; {free / GIB:.1f} GiB are free"
        return text if CHECKPOINTS * size < free else f"warning: {text}; give --run on a larger disk"

    def schedule(self) -> str:
        recipe = self.recipe
        steps = -(-recipe.total_samples // (recipe.batch_size * recipe.window))
        given = f" ({recipe.lr:.3g} at a batch of {recipe.base_batch})" if recipe.base_batch else ""
        return (
            f"{steps:,} steps of {recipe.batch_size} puzzles, {recipe.total_samples:,} samples; lr "
            f"{recipe.scaled(recipe.lr):.3g}{given}, of puzzle vectors {recipe.scaled(recipe.puzzle_lr):.3g}, after "
            f"{recipe.warmup_samples:,} samples of warm-up ({100 * recipe.warmup_samples / recipe.total_samples:.1f} %)"
        )

    def warnings(self, options: PlanOptions) -> list[str]:
        """What is allowed and hardly meant; a warm-up and a length that a recipe names together are meant."""
        recipe, most = self.recipe, self.recipe.total_samples // LONGEST_WARMUP
        lengths = {"total_samples", "warmup_samples"}
        changed = {text.partition("=")[0] for text in options.settings or []}
        is_meant = lengths <= options.named_settings.keys() and not lengths & changed
        if recipe.warmup_samples <= most or is_meant:
            return []
        text = f"the warm-up of {recipe.warmup_samples:,} samples takes more than a tenth of the run"
        return [f"warning: {text}; --set warmup_samples=10% would be a tenth"]

    def with_puzzle_ids(self, count: int) -> "RunPlan":
        return replace(self, config=replace(self.config, num_puzzle_ids=count))

    def to_json(self) -> str:
        paths = {"data": self.data.as_posix(), "init": self.init and self.init.as_posix()}
        records = {"hardware": asdict(self.hardware), "model": asdict(self.config), "recipe": asdict(self.recipe)}
        return json.dumps({**paths, **records}, indent=2) + "\n"


def open_plan(options: PlanOptions, say: Say = print, *, tune: int = 0) -> RunPlan:
    """The plan of a new run, or with `resume` that of an old one; a process that torchrun restarts resumes.

    Builds the usual data set of the puzzle, or of the recipe, where there is none. `tune` tries how many rows at once
    are fastest; the batch of an update may grow so many times. With several ranks the first one plans for all.
    """
    run, ranks = options.run_path, distributed.ranks()
    was_restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by torchrun, after a failure
    if options.resume or (was_restarted and (run / status.SETTINGS).exists()):
        plan = read_plan(run, options.hw)
        if options.puzzle and options.puzzle != plan.recipe.puzzle:
            problem = f"{run} trains {plan.recipe.puzzle}, and --puzzle {options.puzzle} would change that"
            raise ValueError(f"{problem}; leave it away, or start another --run without --resume")
        return plan
    if ranks.is_first:
        if (run / status.SETTINGS).exists():
            raise ValueError(f"{run} already holds a run; add --resume to continue it or choose another --run")
        kind, plan = registry.get(options.puzzle_name), draft(options, hardware_from_name(options.hw or "auto"))
        if options.data is None:
            _build_usual_data(kind, plan.data, options.named_settings.get("data", {}), say, yes=options.yes)
        plan = plan.with_puzzle_ids(batches.open_source(plan.data, "train", kind).num_puzzle_ids)
        if tune:
            plan = _tuned(plan, tune, say)
        run.mkdir(parents=True, exist_ok=True)
        atomic.write_text(run / status.SETTINGS, plan.to_json())
    ranks.wait()
    return read_plan(run)


def draft(options: PlanOptions, machine: Hardware) -> RunPlan:
    """A plan that knows all but the number of puzzle ids; needs neither the data set nor the machine."""
    kind, init, given = registry.get(options.puzzle_name), options.init, options.named_settings
    arch = [f"arch={options.arch}"] if options.arch else []
    settings = [f"{key}={value}" for key, value in given.items() if key not in ("puzzle", "preset", "data")]
    of_model, of_recipe, of_machine = _settings_by_record([*settings, *(options.settings or []), *arch])
    usual_preset = "small" if options.arch and machine.preset == "relational" else machine.preset
    preset = options.preset or given.get("preset") or usual_preset
    data = options.data or Path("data") / str(options.recipe if "data" in given else kind.name)
    usual = recipe_for(preset, kind, machine.target_batch)
    samples_a_pass = partial(_samples_a_pass, data, kind, given.get("data", {}))
    recipe = with_settings(usual, in_samples(of_recipe, usual, samples_a_pass))
    if of_model.get("arch") == "transformer":
        of_model = {"max_segments": "1", **of_model}
    sizes = checkpoint.load_config(checkpoint.resolve(init)) if init else config_for(preset, kind, 1)
    sizes = geometry.config_on(sizes, kind) if sizes.blocks == "relational" else sizes
    if sizes.num_hints:
        sizes = replace(sizes, num_hints=kind.num_hints if isinstance(kind, Hinted) else 0)
    distributed.ranks().slots(recipe.batch_size)  # refuse before any work
    return RunPlan(
        run=options.run_path,
        data=data,
        hardware=with_settings(machine, of_machine),
        config=with_settings(sizes, of_model),
        recipe=recipe,
        init=init,
    )


def _samples_a_pass(data: Path, kind: Puzzle, examples: Values) -> int:
    """One for each group of the data set, as a published epoch; where it is absent, as it will be built."""
    if data.exists():
        return batches.open_source(data, "train", kind).num_groups
    count = examples.get("csv_sample") or examples.get("num_train")
    if count or not (isinstance(kind, Arc) or "source" in examples):
        return count or usual_counts(kind)[0]
    raise ValueError(f"passes are counted on the data set, and {data} is absent; build it first, or give samples")


def read_plan(run: Path, hw: str | None = None) -> RunPlan:
    """The plan as it was written, on another machine where `hw` says so; refuses a machine without its device."""
    file = run / status.SETTINGS
    if not file.exists():
        raise ValueError(f"{run} holds no run to resume; start it without --resume")
    values = checkpoint.read_json(file)
    try:
        plan = RunPlan(
            run=run,
            data=Path(values["data"]),
            hardware=hardware_from_name(hw) if hw else Hardware(**values["hardware"]),
            config=HRMConfig.from_mapping(values["model"]),
            recipe=Recipe.from_mapping(values["recipe"]),
            init=Path(values["init"]) if values["init"] else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not as hrm-train writes it ({error}); start another --run") from error
    prepare(plan.hardware)
    return plan


def trainer_from(plan: RunPlan, say: Say = print) -> Trainer:
    """The trainer at its first step; `Trainer.restore` takes it further."""
    puzzle, recipe = registry.get(plan.recipe.puzzle), plan.recipe
    if isinstance(puzzle, Hinted) and plan.config.num_hints not in (0, puzzle.num_hints):
        kinds = f"{plan.config.num_hints} kinds of hints where {puzzle.name} has {puzzle.num_hints}"
        raise ValueError(f"the run of {plan.run} learns {kinds}; start another --run with --init {plan.run}/latest")
    source = batches.open_source(plan.data, "train", puzzle)
    feed = batches.Feed(source, puzzle, seed=recipe.seed, augment=recipe.augment)
    torch.manual_seed(recipe.seed)
    model = HRM(plan.config)
    if plan.init and not checkpoint.steps_of(plan.run):  # a checkpoint of the run itself replaces the start anyway
        source = checkpoint.resolve(plan.init)
        start = geometry.on_board(checkpoint.load(source)[0], puzzle)
        is_wider = start.config.hidden_size != plan.config.hidden_size
        state = geometry.widened(start, model) if is_wider else start.state_dict()
        if len(state["puzzle_table"]) != plan.config.num_puzzle_ids:  # other puzzles: all begin as the mean of the old
            state["puzzle_table"] = state["puzzle_table"].mean(0).expand_as(model.puzzle_table)
        if start.config.num_hints != plan.config.num_hints:  # other hints are learnt anew
            state = {name: value for name, value in state.items() if "hint_head" not in name}
            state |= {name: value for name, value in model.state_dict().items() if "hint_head" in name}
        checkpoint.load_state(model, state, source)
    return Trainer(model, feed, recipe, plan.hardware, micro_batch=plan.micro_batch_for(model), say=say)


def _settings_by_record(settings: Sequence[str]) -> list[dict[str, str]]:
    """The key=value settings of the model, the recipe and the machine; refuses a key that none of them has."""
    by_data = {"vocab_size", "seq_len", "num_puzzle_ids", "puzzle", "board", "num_symbols", "num_fixed"}
    by_machine = {"name", "device", "gpu", "memory_gb", "preset", "target_batch", "refusal"}
    decided = by_data | by_machine
    known = [{field.name for field in fields(record)} - decided for record in (HRMConfig, Recipe, Hardware)]
    pairs: dict[str, str] = {}
    for text in settings:
        key, found, pairs[key] = text.partition("=")
        if not found:
            raise ValueError(f"--set {text!r} has no '='; write --set key=value")
        if not any(key in keys for keys in known):
            every = sorted(name for keys in known for name in keys)
            raise ValueError(f"unknown setting {key!r}; known settings are {', '.join(every)}")
    return [{key: value for key, value in pairs.items() if key in keys} for keys in known]


def _build_usual_data(kind: Puzzle, path: Path, examples: Values, say: Say, *, yes: bool) -> None:
    """Builds it with the usual settings of `hrm-data build` and those of a recipe, unless it is there.

    Says what, where and how large; what takes a fifth of the free disk or more is built with `yes` alone.
    """
    if path.exists():
        return
    names = {key: f"--{key.removeprefix('num_').replace('_', '-')}" for key in examples}
    command = ["build", kind.name, "--out", str(path)]
    for key, value in examples.items():
        command += [names[key]] if value is True else [names[key], str(value)]
    say(f"{path} is absent: building it as 'hrm-data {' '.join(command)}' does")
    if isinstance(kind, Arc):
        size = most_bytes(ArcRecipe(puzzle=kind.name, **examples), kind)
        free = shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.is_dir())).free
        sizes = f"at most {size / GIB:.1f} GiB; {free / GIB:.1f} GiB are free there"
        if DISK_SHARE * size >= free and not yes:
            raise ValueError(f"{path} would take {sizes}: add --yes, or choose another --puzzle or --recipe")
        say(sizes)
    if ended := hrm_data([*command, "--workers", str(os.cpu_count() or 1)], standalone_mode=False):
        raise typer.Exit(ended)


def _tuned(plan: RunPlan, most: int, say: Say) -> RunPlan:
    """With the fastest micro-batch; one that is larger than the batch becomes the batch, and the rates grow with it."""
    recipe = replace(plan.recipe, batch_size=most * plan.recipe.batch_size)
    rows = fastest(trainer_from(replace(plan, recipe=recipe), say), plan.micro_batch, say)
    plan = replace(plan, hardware=replace(plan.hardware, micro_batch=rows))
    batch_size, grown = plan.recipe.batch_size, rows * distributed.ranks().world
    if grown <= batch_size:
        return plan
    say(f"the batch grows from {batch_size} to {grown}, and the learning rates {grown / batch_size:.3g} times with it")
    base_batch = plan.recipe.base_batch or batch_size
    return replace(plan, recipe=replace(plan.recipe, batch_size=grown, base_batch=base_batch))


def fastest(trainer: Trainer, wanted: int, say: Say, limit: int | None = None) -> int:
    """The fastest of 0.5, 1, 2 and 4 times `wanted` rows that fills at most FILLED of `limit` bytes (the device's own).

    Each is tried by real windows, forward and backward, in which every row is fresh: the most a step can take. Where
    none fits, smaller ones are tried. The trainer's state is spent on it: use one for this alone.
    """
    limit = memory.limit_bytes(trainer.device) if limit is None else limit
    most = len(trainer.slots)
    speeds: dict[int, float] = {}  # samples/s of the micro-batches that fit
    for rows in sorted({min(most, max(1, int(factor * wanted))) for factor in FACTORS}):
        if not _fits(trainer, rows, limit, speeds, say):
            break
    while not speeds:
        if trainer.micro_batch == 1:
            room = f"{FILLED:.0%} of {limit / 2**20:.0f} MiB"
            raise ValueError(f"not even one row fits into {room}; choose a smaller --preset")
        _fits(trainer, trainer.micro_batch // 2, limit, speeds, say)
    best = max(speeds, key=lambda rows: speeds[rows])
    say(f"chosen: micro-batches of {best} rows, {-(-most // best)} for each update")
    return best


def _fits(trainer: Trainer, rows: int, limit: int, speeds: dict[int, float], say: Say) -> bool:
    """Tries one micro-batch; its speed goes to `speeds` where it fits."""
    trainer.regroup(rows)
    memory.restart_peak(trainer.device)
    seconds = math.inf
    try:
        for _ in range(REPEATS):  # the first one also warms up
            begin = time.perf_counter()
            trainer.rehearse()
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = min(seconds, time.perf_counter() - begin)
    except RuntimeError as error:
        if not memory.is_out_of_memory(error):
            raise
        say(f"micro-batch {trainer.micro_batch}: out of memory, too much")
        return False
    samples_per_s, peak = trainer.micro_batch * trainer.recipe.window / seconds, memory.peak_bytes(trainer.device)
    fits = peak <= FILLED * limit
    figures = f"{samples_per_s:.1f} samples/s, peak {peak / 2**20:.0f} MiB"
    say(f"micro-batch {trainer.micro_batch}: {figures}{'' if fits else ', too much'}")
    if fits:
        speeds[trainer.micro_batch] = samples_per_s
    return fits
