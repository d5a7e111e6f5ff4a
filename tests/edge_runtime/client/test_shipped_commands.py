"""The models in the package: what they still say, `hrm models` and `hrm demo`."""

import json
import re
import shlex
from pathlib import Path

import pytest
from bundle_tools import shipped
from cli_tools import invoked, json_of, succeeded
from echo_bundle import write_echo_bundle
from files import text_of

from hrm_edge.shipped import about, demo, models
from hrm_edge.solvers import from_bundles
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_edge_runtime.engines import times
from hrm_parity.cli import ParityOptions, compare_engines

CARDS = text_of("docs/models.md")


def test_every_shipped_model_is_listed_with_a_puzzle_that_it_reads():
    listed = json_of(models)
    assert [model["name"] for model in listed] == list(shipped_bundles())
    for model in listed:
        _, _, puzzle, _, name, *_ = shlex.split(model["example"])
        opened = shipped(name)
        question_T = opened.puzzle.encode(opened.puzzle.parse(puzzle).grid)
        if model["held_out_tasks"] is None:
            assert question_T.tolist() in opened.golden().tokens_BT.tolist()
        size_bytes = opened.graph_path("fp32").stat().st_size
        assert model["size_kb"] == round(size_bytes / 1000)
        assert model["proof_exists"] == opened.puzzle.proof_exists


@pytest.mark.parametrize("name", shipped_bundles())
def test_a_models_accuracy_is_that_of_its_card(name: str):
    row = re.search(rf"^\| \[{name}\].*$", CARDS, re.MULTILINE)
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
def test_a_precision_that_may_lose_more_than_a_point_is_undecided(name: str):
    (row,) = re.findall(rf"^\| {name} \| [\d,]+(?:, [\d,]+)? \|.*\(.*$", CARDS, re.MULTILINE)
    bounds = [float(high) for high in re.findall(r" to (-?[\d.]+)\)", row.replace("−", "-"))]
    manifest = shipped(name).manifest
    rounded = [precision for precision in manifest.precisions if precision != "fp32"]
    beyond = dict(zip(rounded, bounds, strict=True))
    assert set(manifest.undecided) == {precision for precision, high in beyond.items() if high > 1}


def test_a_bundle_of_ones_own_is_told_as_far_as_it_says(tmp_path: Path):
    path = write_echo_bundle(tmp_path / "echo.bundle")
    card = succeeded(models, path).stdout
    assert "\n# echo\n" in card
    assert shlex.split(card.splitlines()[-1])[-2:] == ["--bundle", str(path)]
    (listed,) = json_of(models, path)
    assert (listed["name"], listed["board"], listed["solved"]) == ("echo", "4x4", None)


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_the_table_lists_each_model(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    times_ms = {"fp32": 14.07, "fp16": 10.5, "int8": 39.03}
    monkeypatch.setattr(times, "kept", lambda _: times_ms)
    shown = invoked(models).stdout.splitlines()
    rows = shown[1 : 1 + len(shipped_bundles())]
    assert [line.split()[0] for line in rows] == list(shipped_bundles())
    assert max(map(len, [shown[0], *rows])) <= columns
    for line in rows:
        model = about(line.split()[0])
        assert f"{100 * model['solved']:.1f} % of {model['held_out']}" in line
        assert f"{model['size_kb']} KB" in line
        cells = ["14.07", "10.50*", "39.03"]
        if "fp16" not in shipped(model["name"]).manifest.decided:
            cells = ["14.07*", "10.50", "39.03"]
        assert line.split()[-3:] == cells


@pytest.mark.process
def test_times_are_measured_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "models --measure times them on this CPU" in succeeded(models).stdout
    assert "\nall: relational\n" in succeeded(models, "sudoku-6x6", "--measure").stdout
    (model,) = json_of(models, "sudoku-6x6")
    assert set(model["segment_ms"]) == {"fp32", "fp16", "int8"}
    assert model["auto"] in model["segment_ms"]
    after = succeeded(models).stdout
    assert f"{model['segment_ms']['fp32']:.2f}" in after


@pytest.mark.parametrize("name", ["arc-7x7", "arc-15x15"])
def test_the_example_of_a_model_of_tasks_is_one_that_it_answers_right(name: str):
    shown = invoked(models, name).stdout.splitlines()
    _, _, puzzle, *rest = shlex.split(shown[-1])
    assert json.loads(puzzle)["task"] == about(name)["held_out_tasks"]["right"][0]
    assert rest == ["--bundle", name, "--attempts", "16"]


def test_the_demo_of_arc_is_a_right_answer_and_shows_how_many_are():
    shown = " ".join(invoked(demo, "arc").stdout.split())
    assert "right by its label" in shown
    assert "arc-7x7 is right on 32 of 76 tasks with 16 attempts." in shown


@pytest.mark.parametrize("name", shipped_bundles())
def test_every_shipped_bundle_still_says_what_pytorch_said(name: str):
    comparison = compare_engines(shipped(name), ParityOptions(engine="cpu:fp32"))
    assert not comparison.breaks, comparison.breaks


STUCK = (  # held-out puzzles on which one plain attempt is undecided after 60 segments
    "35.1...........83....57.9..9..2..6...83...12...2..9..4..4.61....35...........5.68",
    "9......433.46..5...6.3...9.....6.32....7.3....83.1.....7...8.3...6..42.915......7",
    ".....1...9.3..6..56..4...7.89..7...2..4.....8..7..9...358.....67...3...........2.",
    "6.5...8.48.........328.....7.342..8.4...3...2.5..793.6.....216.........85.4...2.3",
)


def test_the_9x9_model_proves_with_hypotheses_what_it_leaves_undecided_without():
    bundle = shipped("sudoku")
    solver = from_bundles([bundle], "cpu:fp32", num_threads=1)
    ways = ("plain", "hypotheses")
    proven = dict.fromkeys(ways, 0)
    for how in ways:
        requests = [SolveRequest(puzzle=puzzle, how=how, max_segments=60) for puzzle in STUCK]
        for _, reply in solver.solve_all(requests):
            assert reply.how == how
            proven[how] += reply.status == "proven"
    assert proven["hypotheses"] > proven["plain"]
