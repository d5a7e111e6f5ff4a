"""`hrm models` and `hrm demo`: what the models in the package are, and one of each kind at work."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from echo_bundle import write_echo_bundle
from typer.testing import CliRunner

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.solve.shipped import KINDS, about, accuracy_text, demo, models

CARDS = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_every_shipped_model_is_listed_with_a_puzzle_that_it_reads() -> None:
    listed = json.loads(CliRunner().invoke(models, ["--json"]).stdout)
    assert [model["name"] for model in listed] == list(shipped_bundles())
    for model in listed:
        _, _, puzzle, _, name, *_ = shlex.split(model["example"])
        opened = Bundle.open(find_bundle(name))
        opened.puzzle.parse(puzzle)
        size_bytes = opened.graph_path("fp32").stat().st_size
        assert model["size_kb"] == round(size_bytes / 1000)
        assert model["proof_exists"] == opened.puzzle.proof_exists


@pytest.mark.parametrize("name", shipped_bundles())
def test_a_models_accuracy_is_that_of_its_card(name: str) -> None:
    row = re.search(rf"^\| \[{name}\].*$", CARDS, re.MULTILINE)
    assert row is not None
    cell = row[0].split("|")[3].replace(",", "")
    said = [float(number) for number in re.findall(r"\d[\d.]*", cell)]
    model = about(name)
    solved = model["solved"]
    solved_16 = model["solved_16_attempts"] or 0
    if model["proof_exists"]:
        found = [100 * solved, model["held_out"], 100 * solved_16, 16]
    else:
        found = [model["held_out"] * solved, model["held_out"] * solved_16, 16]
    assert sorted(said) == pytest.approx(sorted(found)[-len(said) :], abs=0.06)


def test_a_bundle_of_ones_own_is_told_as_far_as_it_says(tmp_path: Path) -> None:
    path = write_echo_bundle(tmp_path / "echo.bundle")
    shown = CliRunner().invoke(models, [str(path)]).stdout
    assert shown.startswith("echo: sudoku-4x4, 4x4, ")
    assert accuracy_text(about(str(path))) in shown.splitlines()[0]


@pytest.mark.parametrize(("name", "share"), [("arc-7x7", "23 of 76"), ("arc-15x15", "34 of 455")])
def test_a_model_of_tasks_names_those_that_it_answers_right(name: str, share: str) -> None:
    shown = CliRunner().invoke(models, [name]).stdout.splitlines()
    assert shown[0].endswith(f"right on {share} tasks with 16 attempts")
    right = about(name)["held_out_tasks"]["right"]
    assert shown[2] == f"  right: {right[0]}, {right[1]}, {right[2]} and {len(right) - 3} more"
    _, _, puzzle, *rest = shlex.split(shown[3])
    assert json.loads(puzzle)["task"] == right[0]
    assert rest == ["--bundle", name, "--attempts", "16"]


@pytest.mark.process
def test_models_are_listed_without_torch_or_an_engine() -> None:
    script = (
        "import sys; from hrm_edge_runtime.solve.shipped import about; "
        "about('sudoku'); print(*sys.modules)"
    )
    program = [sys.executable, "-c", script]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded  # the list is a real one
    assert not {"torch", "onnxruntime", "fastapi"} & loaded


@pytest.mark.parametrize("kind", KINDS)
def test_a_demo_draws_the_answer_and_names_three_next_steps(kind: str) -> None:
    shown = CliRunner().invoke(demo, [kind])
    assert shown.exit_code == 0, shown.stderr
    assert f"--bundle {KINDS[kind]}" in shown.stdout.splitlines()[1]
    assert ("proven right" in shown.stdout) == (kind != "arc")
    assert len(shown.stdout.partition("Next:\n")[2].splitlines()) == 3


def test_the_demo_of_arc_is_a_right_answer_and_shows_how_many_are() -> None:
    shown = " ".join(CliRunner().invoke(demo, ["arc"]).stdout.split())
    assert "right by its label" in shown
    assert "arc-7x7 is right on 23 of 76 tasks with 16 attempts." in shown
