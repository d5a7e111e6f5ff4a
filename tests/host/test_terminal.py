"""On a terminal, beside its bars, a command still prints what it has to say."""

import json
import re
from pathlib import Path

import pytest
from echo_bundle import write_echo_bundle
from export_tools import small_model
from service_tools import command
from solving_tools import OPEN, SOLVED
from terminal_tools import shown

from hrm_model import checkpoint
from hrm_puzzles.data.build import DataRecipe, build

BAR = "━━━"
CLEARED = "\x1b[2K"  # takes a line away
STYLED = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # every command that rich writes
PRINTED = [f"{SOLVED}\r\n", "# not solved", "4 puzzles: 1 proven, 2 unfinished, 1 refused"]

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], PRINTED),
        (["--json"], ['"solution": "1234', '"status": "unfinished"', '"rule": "wrong-length"']),
        (["--out", "OUT", "--json"], ['{"puzzles": 4, "solved": 1, "proven": 1']),
    ],
)
def test_solving_a_file_prints_every_answer(
    options: list[str], expected: list[str], tmp_path: Path
) -> None:
    bundle = write_echo_bundle(tmp_path / "echo.bundle")
    many = tmp_path / "many.txt"
    many.write_text(f"{SOLVED}\n{OPEN}\n{OPEN}\n12\n")
    places = {"OUT": str(tmp_path / "out")}
    arguments = [places.get(option, option) for option in options]
    seen = shown(command("solve", many, "--bundle", bundle, *arguments))
    for part in expected:
        assert part in seen, seen


def test_training_and_evaluating_draw_bars_and_keep_what_they_have_to_say(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run = tmp_path / "run"
    answers = tmp_path / "answers.json"
    build(DataRecipe(puzzle="sudoku-4x4", num_train=16, num_test=8), data)
    training = ["train", "--puzzle", "sudoku-4x4", "--data", data, "--run", run, "--hw", "cpu"]
    for size in ("max_segments=4", "batch_size=8", "total_samples=800", "warmup_samples=80"):
        training += ["--set", size]
    seen = shown(command(*training))
    assert BAR in seen, seen
    after_bars = seen.split(CLEARED)[-1]
    last_line = STYLED.sub("", after_bars).rstrip().splitlines()[-1]
    assert last_line.startswith(f"next: hrm-export {run}/best"), seen
    seen = shown(command("eval", run, "--data", data, "--json"), answers)
    assert BAR in seen, seen
    assert json.loads(answers.read_text())["fixed"]


def test_an_export_draws_bars_and_keeps_its_json_pure(tmp_path: Path) -> None:
    model = small_model(num_puzzle_ids=1, max_segments=2)
    checkpoint.save(tmp_path / "step_1", model, {"puzzle": "sudoku-4x4"})
    answers = tmp_path / "answers.json"
    bundle = tmp_path / "silent.bundle"
    sizes = ("--held-out", 4, "--golden", 1)
    seen = shown(command("export", tmp_path / "step_1", *sizes, "--out", bundle, "--json"), answers)
    assert "measuring fp32" in seen, seen
    assert BAR in seen, seen
    assert json.loads(answers.read_text())["name"] == "silent"
