"""The options of hrm-train. Nothing here imports PyTorch, which `--help` would wait for."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hrm_model.config import require_fields
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle
from hrm_train.recipe import NAMED, SIZES, TABLES, Values, named

SHIPPED_CHECKPOINTS = Path("model") / "checkpoints"  # folder in a checkout


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """When to validate and to save; the weights of a run do not depend on them."""

    validate_steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps between validations on a tenth of the puzzles; fewer for a short run.",
        ),
    ] = 1000
    validate_whole_steps: Annotated[
        int, typer.Option(min=1, help="Steps between validations on all puzzles.")
    ] = 10_000
    validation_puzzles: Annotated[
        int, typer.Option(min=0, help="Maximum number of held-out puzzles; 0: all.")
    ] = 4096
    log_steps: Annotated[
        int, typer.Option(min=1, help="Steps between rows of figures; ranks act on signals then.")
    ] = 20
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 2000
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between checkpoints.")
    ] = 5.0
    keep: Annotated[
        int, typer.Option(min=1, help="Number of latest checkpoints to keep, besides the best.")
    ] = 2

    def __post_init__(self) -> None:
        """Raises ValueError for a number in run.json that the option would reject."""
        ranges: dict[str, tuple[float, float]] = {}
        for name, hint in get_type_hints(Intervals, include_extras=True).items():
            (option,) = hint.__metadata__
            ranges[name] = (option.min, math.inf)
        require_fields(self, ranges)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that define a run. The puzzle and the machine determine the defaults."""

    recipe: Annotated[
        str | None,
        typer.Argument(help=f"Named recipe; options override it: {', '.join(NAMED)}."),
    ] = None
    run: Annotated[
        Path | None, typer.Option(help="Directory of the run. Default: runs/PUZZLE or runs/RECIPE.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data set directory, or a file of ARC tasks to build data/FILE from. Default: "
            "data/PUZZLE or data/RECIPE, built if absent."
        ),
    ] = None
    puzzle: Annotated[
        str | None,
        typer.Option(help="Name of the puzzle. Default: arc, or the recipe's."),
    ] = None
    hw: Annotated[
        str | None,
        typer.Option(
            help="Machine: auto (default), a card's memory such as 16gb, "
            f"{', '.join([*TABLES['machines'], *TABLES['cards']])}."
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"Model: {', '.join(SIZES)}. Default: published on a GPU, relational on a CPU."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a setting of model, recipe or machine, as key=value; may be repeated.",
        ),
    ] = None
    arch: Annotated[
        str | None, typer.Option(help="hrm, or transformer for the plain baseline. Default: hrm.")
    ] = None
    init: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint whose weights to start from, or in a checkout the name of a shipped "
            "one, such as sudoku."
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="CPU threads for arithmetic. [default: 1 for a small model, else one per core]",
        ),
    ] = None
    fill: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=0.95,
            help="Share of the card's memory that the micro-batch may fill. [default: the table's]",
        ),
    ] = None
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Allow a data set of a fifth of the free disk or more, or ARC on a CPU.",
        ),
    ] = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run exactly from its last checkpoint, unless options change it.",
        ),
    ] = False
    data_changed: Annotated[
        bool,
        typer.Option("--data-changed", help="Let a resumed run train on different data."),
    ] = False

    @property
    def named_settings(self) -> Values:
        """The settings of the named recipe; nothing without one."""
        if not self.recipe:
            return {}
        return named(NAMED, "recipe", self.recipe)

    @property
    def named_intervals(self) -> Intervals:
        """The intervals of the named recipe; the usual ones without one."""
        names = Intervals.__dataclass_fields__
        settings = self.named_settings
        return Intervals(**{name: settings[name] for name in names if name in settings})

    @property
    def kind(self) -> Puzzle:
        return registry.get(self.puzzle_name)

    @property
    def puzzle_name(self) -> str:
        """The puzzle that is named, or the recipe's, or ARC."""
        return self.puzzle or str(self.named_settings.get("puzzle", "arc"))

    @property
    def init_path(self) -> Path | None:
        """The checkpoint to start from."""
        if self.init is None or self.init.exists():
            return self.init
        shipped = SHIPPED_CHECKPOINTS / self.init
        return shipped if shipped.is_dir() else self.init

    @property
    def named_preset(self) -> str | None:
        return self.preset or self.named_settings.get("preset")

    @property
    def examples(self) -> Values:
        """What the recipe's data set is built from; nothing without a recipe."""
        return self.named_settings.get("data", {})

    @property
    def run_path(self) -> Path:
        return self.run or Path("runs") / (self.recipe or self.puzzle_name)

    @property
    def tasks_file(self) -> Path | None:
        """The file of ARC tasks that --data names, from which a data set is built."""
        if self.data is not None and self.data.suffix == ".json":
            return self.data
        return None

    @property
    def named_data(self) -> Path | None:
        """The data set that --data names."""
        if self.tasks_file is None:
            return self.data
        return Path("data") / self.tasks_file.stem

    @property
    def data_path(self) -> Path:
        if self.named_data:
            return self.named_data
        if self.recipe and self.examples:
            return Path("data") / self.recipe
        return Path("data") / self.kind.name


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Intervals, PlanOptions):
    """All options of hrm-train, in the order of its help."""

    context: typer.Context
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Find the fastest micro-batch on this machine, then train."),
    ] = False
    tune_batch: Annotated[
        int,
        typer.Option(
            min=1, help="Largest factor by which --tune may grow the batch and learning rates."
        ),
    ] = 1
    profile: Annotated[
        int | None, typer.Option(min=1, help="Number of steps to profile instead of training.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what a run needs on any --hw, and exit.")
    ] = False
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Also write to W&B (offline by default).")
    ] = False

    def intervals_for(self, num_steps: int) -> Intervals:
        """The intervals of a new run of this many steps."""
        usual = self.named_intervals
        if "validate_steps" not in self.named_settings:
            tenth = max(1, num_steps // 10)  # fewer points would not show a curve
            usual = replace(usual, validate_steps=min(tenth, usual.validate_steps))
        return self.intervals_after(usual)

    def intervals_after(self, before: Intervals) -> Intervals:
        """The intervals that the command line names; the others as in `before`."""
        named: dict[str, Any] = {}
        for name in Intervals.__dataclass_fields__:
            source = self.context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                named[name] = getattr(self, name)
        return replace(before, **named)
