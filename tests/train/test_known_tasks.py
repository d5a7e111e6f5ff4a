"""`--init` with other ARC tasks: tasks that both know keep the vectors that were learned."""

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from hrm_model import checkpoint
from hrm_puzzles.cli import main as app
from hrm_train.checkpoints import start_of
from hrm_train.options import PlanOptions
from hrm_train.plan import open_plan
from hrm_train.run import run_of
from hrm_train.run_plan import RunPlan
from hrm_train.start import trainer_from

PAIR = {"input": [[1]], "output": [[2]]}
SETTINGS = ("precision=fp32", "compile=false", "total_samples=64")


def built(folder: Path, *tasks: str) -> Path:
    for task in tasks:
        file = folder / "tasks" / "training" / f"{task}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"train": [PAIR, PAIR], "test": [PAIR]}))
    line = ["build", "arc-7x7", "--dataset", str(folder / "tasks"), "--out", str(folder / "data")]
    ended = CliRunner().invoke(app, [*line, "--augment", "0", "--hold-out-all"])
    assert ended.exit_code == 0, ended.output
    return folder / "data"


def plan_of(folder: Path, data: Path, init: Path | None = None) -> RunPlan:
    options = PlanOptions(
        run=folder / "run",
        puzzle="arc-7x7",
        preset="relational",
        hw="cpu",
        data=data,
        init=init,
        settings=SETTINGS,
    )
    return open_plan(options)


def saved(plan: RunPlan) -> Path:
    """The checkpoint of a run before its first step, with a vector of its own for each task."""
    trainer = trainer_from(plan)
    table_NE = trainer.model.puzzle_table
    row_N = torch.arange(1.0, 1 + len(table_NE))
    table_NE.copy_(row_N[:, None].expand_as(table_NE))
    run_of(plan, trainer, print, wandb=False).save()
    found = start_of(plan.run)
    assert found is not None
    return found


def test_known_tasks_keep_their_vectors_and_others_begin_as_the_mean(tmp_path: Path) -> None:
    before = tmp_path / "before"
    start = saved(plan_of(before, built(before, "aaaaaaaa", "bbbbbbbb")))
    old_NE = checkpoint.load(start)[0].puzzle_table
    after = tmp_path / "after"
    plan = plan_of(after, built(after, "bbbbbbbb", "cccccccc", "dddddddd"), start)
    new_NE = trainer_from(plan).model.puzzle_table
    assert torch.equal(new_NE[0], old_NE[0])  # the blank row
    assert torch.equal(new_NE[1], old_NE[2])
    for row in (2, 3):
        assert torch.equal(new_NE[row], old_NE.mean(0))


def test_without_names_every_vector_begins_as_the_mean(tmp_path: Path) -> None:
    before = tmp_path / "before"
    start = saved(plan_of(before, built(before, "aaaaaaaa", "bbbbbbbb")))
    model, _ = checkpoint.load(start)
    unnamed = tmp_path / "unnamed"
    checkpoint.save(unnamed, model, {})
    after = tmp_path / "after"
    plan = plan_of(after, built(after, "bbbbbbbb", "cccccccc", "dddddddd"), unnamed)
    new_NE = trainer_from(plan).model.puzzle_table
    assert torch.equal(new_NE, model.puzzle_table.mean(0).expand_as(new_NE))
