"""`hrm models` and `hrm demo`: what the models in the package are, and one of each kind at work."""

import json
import re
import shlex
from pathlib import Path

import pytest
from echo_bundle import write_echo_bundle
from typer.testing import CliRunner

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines import cpu_times
from hrm_edge_runtime.solve.shipped import about, accuracy_text, demo, models

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


@pytest.mark.parametrize("name", shipped_bundles())
def test_a_precision_that_may_lose_more_than_a_point_is_undecided(name: str) -> None:
    (row,) = re.findall(rf"^\| {name} \| [\d,]+(?:, [\d,]+)? \|.*\(.*$", CARDS, re.MULTILINE)
    bounds = [float(high) for high in re.findall(r" to (-?[\d.]+)\)", row.replace("−", "-"))]
    manifest = Bundle.open(find_bundle(name)).manifest
    rounded = [precision for precision in manifest.precisions if precision != "fp32"]
    beyond = dict(zip(rounded, bounds, strict=True))
    assert set(manifest.undecided) == {precision for precision, high in beyond.items() if high > 1}


def test_a_bundle_of_ones_own_is_told_as_far_as_it_says(tmp_path: Path) -> None:
    path = write_echo_bundle(tmp_path / "echo.bundle")
    shown = CliRunner().invoke(models, [str(path)]).stdout.splitlines()
    assert shown[1].split()[:3] == ["echo", "4x4", "–"]
    told = CliRunner().invoke(models, ["--example", str(path)]).stdout.splitlines()
    assert told[0] == f"# echo: {accuracy_text(about(str(path)))}"
    assert shlex.split(told[-1])[-2:] == ["--bundle", str(path)]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_the_table_of_models_has_a_line_for_each(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    times_ms = {"fp32": 14.07, "fp16": 10.5, "int8": 39.03}
    monkeypatch.setattr(cpu_times, "kept", lambda _: times_ms)
    shown = CliRunner().invoke(models, []).stdout.splitlines()
    rows = shown[1 : 1 + len(shipped_bundles())]
    assert [line.split()[0] for line in rows] == list(shipped_bundles())
    assert max(map(len, [shown[0], *rows])) <= columns
    for line in rows:
        model = about(line.split()[0])
        assert f"{100 * model['solved']:.1f} % of {model['held_out']}" in line
        assert f"{model['size_kb']} KB" in line
        assert line.split()[-3:] == ["14.07", "10.50*", "39.03"]


@pytest.mark.process
def test_times_are_taken_on_request_and_shown_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = CliRunner().invoke(models, ["sudoku-6x6"]).stdout
    assert "models --measure times them on this CPU" in before
    assert CliRunner().invoke(models, ["sudoku-6x6", "--measure"]).exit_code == 0
    (model,) = json.loads(CliRunner().invoke(models, ["sudoku-6x6", "--json"]).stdout)
    assert set(model["segment_ms"]) == {"fp32", "fp16", "int8"}
    assert model["auto"] in model["segment_ms"]
    after = CliRunner().invoke(models, ["sudoku-6x6"]).stdout
    assert f"{model['segment_ms']['fp32']:.2f}" in after


@pytest.mark.parametrize("name", ["arc-7x7", "arc-15x15"])
def test_a_model_of_tasks_names_those_that_it_answers_right(name: str) -> None:
    shown = CliRunner().invoke(models, ["--example", name]).stdout.splitlines()
    results = about(name)["held_out_tasks"]
    right = results["right"]
    share = f"{len(right)} of {results['num_tasks']} tasks with 16 attempts"
    generated = ""
    if results["generated"]:
        generated = f"; {len(results['generated'])} tasks were learned from generated examples"
    assert shown[0] == f"# {name}: right on {share}{generated}"
    assert shown[2] == f"# right: {right[0]}, {right[1]}, {right[2]} and {len(right) - 3} more"
    _, _, puzzle, *rest = shlex.split(shown[3])
    assert json.loads(puzzle)["task"] == right[0]
    assert rest == ["--bundle", name, "--attempts", "16"]


def test_the_demo_of_arc_is_a_right_answer_and_shows_how_many_are() -> None:
    shown = " ".join(CliRunner().invoke(demo, ["arc"]).stdout.split())
    assert "right by its label" in shown
    assert "arc-7x7 is right on 32 of 76 tasks with 16 attempts." in shown
