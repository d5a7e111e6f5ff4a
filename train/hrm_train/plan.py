"""Plans a run once, and writes the plan into its directory.

plan = open_plan(PlanOptions(puzzle="arc", hw="rtx4090"))  # builds data/arc if it is absent
trainer = trainer_from(plan)
"""

import os
from collections.abc import Callable
from pathlib import Path

from hrm_puzzles.data.for_training import build_if_absent, meta_for
from hrm_train import distributed, status
from hrm_train.draft import draft
from hrm_train.hardware import Say, hardware_from_name
from hrm_train.optim import require_lion
from hrm_train.options import PlanOptions
from hrm_train.run_plan import RunPlan, filled, read_plan, write_plan

Adjust = Callable[[RunPlan], RunPlan]


def open_plan(options: PlanOptions, say: Say = print, adjust: Adjust | None = None) -> RunPlan:
    """Returns the plan of a new run, or the plan of the run to resume.

    Builds the usual data set of the puzzle, or of the named recipe, if it is absent. `adjust`
    changes a new plan before it is written. With several ranks the first one plans for all.
    """
    machine = None  # the plan's machine, with its settings
    if not (options.resume or _was_restarted(options.run_path)):
        _write_new(options, say, adjust)
    elif options.hw:
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


def _write_new(options: PlanOptions, say: Say, adjust: Adjust | None) -> None:
    ranks = distributed.ranks()
    if ranks.is_first:
        plan = _new(options, say)
        if adjust is not None:
            plan = adjust(plan)
        write_plan(plan)
    ranks.wait()


def _new(options: PlanOptions, say: Say) -> RunPlan:
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
        return filled(plan, options.fill)
    return plan
