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

CLEARED, STYLED = (
    "\x1b[2K",
    re.compile(r"\x1b\[[\d;?]*[A-Za-z]"),
)  # what rich writes to take a line away, and all it writes

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            [],
            [
                f"{SOLVED}\r\n",
                "# not solved",
                "# refused",
                "4 puzzles: 1 proven, 2 unfinished, 1 refused",
            ],
        ),
        (["--json"], ['"solution": "1234', '"status": "unfinished"', '"rule": "wrong-length"']),
        (["--out", "OUT", "--json"], ['{"puzzles": 4, "solved": 1, "proven": 1']),
    ],
)
def test_solving_a_file_prints_every_answer(
    options: list[str], said: list[str], tmp_path: Path
) -> None:
    bundle = write_echo_bundle(tmp_path / "echo.bundle")
    many = tmp_path / "many.txt"
    many.write_text(f"{SOLVED}\n{OPEN}\n{OPEN}\n12\n")
    arguments = [str(tmp_path / "out") if option == "OUT" else option for option in options]
    seen = shown(command("solve", many, "--bundle", bundle, *arguments))
    assert all(one in seen for one in said), seen


def test_building_a_data_set_says_what_was_built(tmp_path: Path) -> None:
    options = [
        "build",
        "sudoku-4x4",
        "--out",
        str(tmp_path / "data"),
        "--train",
        "8",
        "--test",
        "4",
    ]
    assert "8 training and 4 test examples" in shown([*command("data"), *options])


def test_parity_prints_its_figures(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "echo.bundle")
    assert "hrm-parity: " in shown(
        [*command("parity"), str(bundle)]
    )  # it holds no golden traces, and says so


def test_training_and_evaluating_draw_bars_and_keep_what_they_have_to_say(tmp_path: Path) -> None:
    data, run, answers = tmp_path / "data", tmp_path / "run", tmp_path / "answers.json"
    build(DataRecipe(puzzle="sudoku-4x4", num_train=16, num_test=8), data)
    sizes = ("max_segments=4", "batch_size=8", "total_samples=800", "warmup_samples=80")
    options = [f"--set={size}" for size in sizes]
    seen = shown(
        [
            *command(
                "train", "--puzzle", "sudoku-4x4", "--data", data, "--run", run, "--hw", "cpu"
            ),
            *options,
        ]
    )
    assert "━━━" in seen, seen
    last = STYLED.sub("", seen.split(CLEARED)[-1]).rstrip().splitlines()[-1]
    assert last.startswith(f"next: hrm-export {run}/best"), seen
    seen = shown(command("eval", run, "--data", data, "--json"), answers)
    assert "━━━" in seen, seen
    assert json.loads(answers.read_text())["fixed"]


def test_an_export_draws_bars_keeps_its_last_line_and_its_json_pure(tmp_path: Path) -> None:
    model = small_model(num_puzzle_ids=1, max_segments=2)
    checkpoint.save(tmp_path / "step_1", model, {"puzzle": "sudoku-4x4"})
    asked, answers = (
        command("export", tmp_path / "step_1", "--held-out", 4, "--golden", 1),
        tmp_path / "answers.json",
    )
    seen = shown([*asked, "--out", str(tmp_path / "seen.bundle")])
    assert "measuring fp32" in seen, seen
    assert "━━━" in seen, seen
    assert STYLED.sub("", seen).rstrip().endswith("Times on this machine (all cores)."), seen
    seen = shown([*asked, "--out", str(tmp_path / "silent.bundle"), "--json"], answers)
    assert "━━━" in seen, seen
    assert json.loads(answers.read_text())["name"] == "silent"
