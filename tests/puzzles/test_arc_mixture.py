"""The published mixture of ARC-AGI-1 and ConceptARC: 960 tasks from one folder."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hrm_puzzles.arc.tasks import read_tasks
from hrm_puzzles.cli import main as app

CONCEPTS = 16
"""Folders of ConceptARC's `corpus`, with tasks 1 to 10 of each concept."""
PAIR = {"input": [[1]], "output": [[2]]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The layout of ARC-AGI's `data` and of ConceptARC's `corpus`, with tiny tasks."""
    names = [f"training/{number:08x}" for number in range(400)]
    names += [f"evaluation/{number:08x}" for number in range(400, 800)]
    for concept in range(CONCEPTS):
        names += [f"corpus/Concept{concept}/Concept{concept}-{number}" for number in range(1, 11)]
    root = tmp_path / "arc-960"
    for name in names:
        file = root / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"train": [PAIR, PAIR], "test": [PAIR]}))
    return root


def test_960_tasks_are_built_with_one_command_and_only_evaluation_is_held_out(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    options = ["--dataset", str(folder), "--out", str(out), "--augment", "0", "--json"]
    ended = CliRunner().invoke(app, ["build", "arc", *options])
    assert ended.exit_code == 0, ended.output
    built = json.loads(ended.stdout)
    assert (built["num_tasks"], built["num_left_out"]) == (960, 0)
    assert built["num_train"] == 560 * 3 + 400 * 2
    assert built["num_test"] == 400
    held_out = {task.name for task in read_tasks(str(folder)) if task.is_held_out}
    assert held_out == {f"{number:08x}" for number in range(400, 800)}
