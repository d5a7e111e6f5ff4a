"""The data set that a puzzle is trained on: builds the usual one if it is absent."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from hrm_host.machine import num_cores
from hrm_host.memory import GIB
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe
from hrm_puzzles.arc.tasks import chosen, read_tasks
from hrm_puzzles.cli import main as hrm_data
from hrm_puzzles.puzzle import Puzzle

DISK_SHARE = 5  # ask before a data set takes a fifth of the free disk


def build_if_absent(
    puzzle: Puzzle,
    path: Path,
    settings: Mapping[str, Any],
    say: Callable[[str], object],
    *,
    may_fill_disk: bool,
) -> None:
    """Builds the data set at `path` with the defaults of `hrm-data build`, changed by `settings`.

    Reports the command and the size. Raises ValueError if the data set would take a fifth of the
    free disk or more, unless `may_fill_disk`.
    """
    if path.exists():
        return
    command = ["build", puzzle.name, "--out", str(path), *_options(settings)]
    say(f"{path} is absent: building it as 'hrm-data {' '.join(command)}' does")
    if isinstance(puzzle, Arc):
        say(_sizes(path, largest_bytes(puzzle, settings), may_fill_disk=may_fill_disk))
    status = hrm_data([*command, "--workers", str(num_cores())], standalone_mode=False)
    if status:
        raise typer.Exit(status)


def largest_bytes(puzzle: Arc, settings: Mapping[str, Any]) -> int:
    """Upper bound of the bytes of an ARC data set with the defaults changed by `settings`.

    A task with few symmetries has fewer variants.
    The settings of a named recipe never add further examples (`more`): those are a user's files.
    """
    recipe = ArcRecipe(puzzle=puzzle.name, **settings)
    num_pairs = 0
    for task in chosen(read_tasks(recipe.dataset), recipe.tasks):
        if task.side <= puzzle.side:
            num_pairs += len(task.pairs)
    bytes_per_pair = 2 * puzzle.seq_len
    return bytes_per_pair * num_pairs * (recipe.augment + 1)


def _options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of `hrm-data build`: num_train=6000 becomes --train 6000."""
    options: list[str] = []
    for key, value in settings.items():
        name = key.removeprefix("num_").replace("_", "-")
        options.append(f"--{name}")
        if value is not True:
            options.append(str(value))
    return options


def _sizes(path: Path, size: int, *, may_fill_disk: bool) -> str:
    """What a data set takes and the disk has; raises ValueError if it is too much."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    sizes = f"at most {size / GIB:.1f} GiB; {free / GIB:.1f} GiB are free there"
    if DISK_SHARE * size >= free and not may_fill_disk:
        raise ValueError(
            f"{path} would take {sizes}: add --yes, or choose another recipe or --puzzle"
        )
    return sizes
