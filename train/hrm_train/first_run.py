"""What `hrm-train` asks before a CPU builds and trains ARC only by default."""

import sys
from collections.abc import Callable

import typer

from hrm_host.command import runnable
from hrm_host.memory import GIB
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data.for_training import largest_bytes
from hrm_train.hardware import hardware_from_name
from hrm_train.options import PlanOptions

FOR_A_CPU = {
    "sudoku-small": "9x9 Sudoku, minutes on one core",
    "maze-small": "10x10 mazes",
    "arc-small": "76 small ARC tasks",
}


def confirm(options: PlanOptions, say: Callable[[str], object]) -> None:
    """Explain the recipes and ask, if a CPU would build the whole ARC data set by default.

    Raises ValueError if the person declines, or if there is no terminal to ask on.
    """
    puzzle = options.kind
    if not isinstance(puzzle, Arc) or not _is_default(options):
        return
    hrm_train = runnable("hrm-train")
    example = f"choose a recipe, for example {hrm_train} --recipe sudoku-small"
    machine = hardware_from_name(options.hw or "auto")
    if machine.device != "cpu":
        return
    size_gib = largest_bytes(puzzle, options.examples) / GIB
    say(f"Without --puzzle or --recipe, hrm-train builds all of ARC (up to {size_gib:.1f} GiB)")
    say("and trains a large model, which is too much for a CPU. Recipes for a CPU:")
    for name, description in FOR_A_CPU.items():
        say(f"  {hrm_train} --recipe {name:<14}# {description}")
    if not sys.stdin.isatty():
        raise ValueError(f"ARC on a CPU needs --yes; or {example}")
    if not typer.confirm("Build and train ARC here?", err=True):
        raise ValueError(f"nothing is trained: {example}")


def _is_default(options: PlanOptions) -> bool:
    """Whether nobody named a puzzle, and its data set is still to be built."""
    if options.resume or options.yes:
        return False
    if options.puzzle or options.recipe or options.data:
        return False
    return not options.data_path.exists()
