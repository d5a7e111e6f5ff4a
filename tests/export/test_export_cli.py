"""hrm-export from end to end: a checkpoint goes in, and a bundle that solves puzzles comes out."""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from cli_tools import invoked, json_of, rejected, succeeded
from click.testing import Result
from export_tools import SUDOKU, TRM_MIXER, data_set, relational_sizes, replayed, small_model
from stand_ins import PYTHON_PATH
from train_tools import losses, small_trainer

from hrm_edge.requests import requests_from
from hrm_edge.solvers import from_bundles
from hrm_edge_runtime.api.schema import SolveAnswer
from hrm_edge_runtime.contract.bundle import TASKS_NAME, Bundle
from hrm_edge_runtime.engines import times
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.engines.onnx import CUDA
from hrm_export.cli import main as app
from hrm_export.inputs import data_of, find_checkpoint, find_puzzles
from hrm_export.options import Options
from hrm_host.progress import Stages
from hrm_model import checkpoint
from hrm_parity.report import breaks
from hrm_puzzles import registry
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.arc.tasks import read_tasks
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import open_split
from hrm_puzzles.data.sources import Questions, questions_made
from hrm_train.hardware import PRESETS

PLAIN = {"num_puzzle_ids": 1, "max_segments": 4}
QUICK = {"high_cycles": 1, "low_cycles": 1, "low_layers": 1}
CONFIG = small_model(num_puzzle_ids=1).config
FEW = ("--golden", "4", "--held-out", "16")
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def saved(path: Path, puzzle: object = "sudoku-4x4", **changes: Any) -> Path:
    model = small_model(**{**PLAIN, **changes})
    checkpoint.save(path, model, {"puzzle": puzzle, "step": 12})
    return path


def exported(source: Path, out: Path, *options: object) -> Result:
    return succeeded(app, source, "--out", out, *FEW, *options)


def bundle_of(source: Path, out: Path, *options: str) -> Bundle:
    """Export and return a bundle that replays its golden traces."""
    exported(source, out, *options)
    bundle = Bundle.open(out)
    assert not breaks(replayed(bundle))
    return bundle


def assert_rejected(source: Path, out: Path, *options: str, saying: str) -> None:
    assert saying in rejected(app, source, "--out", out, *FEW, *options)
    assert not out.exists()


def test_a_bundle_names_right_tasks_and_generated_examples(tmp_path: Path):
    arc = registry.get("arc-7x7")
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"25ff71a9": [{"input": [[7]], "output": [[7]]}]}))
    (tmp_path / "LICENSE").write_text("MIT License")
    recipe = ArcRecipe(
        puzzle=arc.name,
        tasks="0d3d703e,25ff71a9,3618c87e",
        augment=7,
        keep_colors=True,
        hold_out_all=True,
        more=more,
        more_license=tmp_path / "LICENSE",
    )
    data = tmp_path / "data"
    build_arc(recipe, arc, data)
    num_ids = open_split(data, "test", arc).num_puzzle_ids
    sizes = {"vocab_size": 12, "seq_len": 49, "num_puzzle_ids": num_ids, "max_segments": 2}
    source = saved(tmp_path / "step_12", arc.name, **sizes)
    exported(source, tmp_path / "arc.bundle", "--data", data)
    bundle = Bundle.open(tmp_path / "arc.bundle")
    tasks = json.loads((bundle.path / TASKS_NAME).read_text())
    originals = read_tasks("arcagi")
    expected = {one.name: len(one.demonstrations) for one in originals if one.name in tasks}
    assert len(tasks) == 3
    assert {name: len(task["train"]) for name, task in tasks.items()} == expected
    manifest = bundle.manifest
    results = manifest.held_out_tasks
    assert (results.attempts, results.num_tasks, results.generated) == (16, 3, ["25ff71a9"])
    assert list(tasks)[: len(results.right)] == results.right
    assert manifest.provenance["held_out"] == 3
    assert manifest.provenance["solved_16_attempts"] == round(len(results.right) / 3, 4)


@pytest.mark.gpu
def test_a_bundle_made_on_a_gpu_replays_on_the_cpu(tmp_path: Path):
    if CUDA.name not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA here: pip install 'hrm-edge[serve-gpu]'")
    forms = ("--fp16", "--int8", "--max-loss", "100", "--device", "cuda")
    bundle_of(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *forms)


@pytest.mark.process
def test_build_engine_keeps_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Over the stand-in for TensorRT and PyCUDA; the second time without either."""
    source = saved(tmp_path / "step_12", **QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHON_PATH)
        exported(source, tmp_path / "built.bundle", "--build-engine")
    (plan,) = tmp_path.glob("cache/**/*.plan")
    assert "-fp32-" in plan.name
    plain = ("--out", tmp_path / "plain.bundle", "--build-engine")
    assert invoked(app, source, *FEW, *plain).exit_code == 1
    assert "python3-libnvinfer" in capfd.readouterr().err
    assert Bundle.open(tmp_path / "plain.bundle").manifest.name == "plain"


TRM = {**TRM_MIXER, **PLAIN, **QUICK, "high_layers": 1}
TRANSFORMER = {**PLAIN, "arch": "transformer", "max_segments": 1, "low_layers": 1}


NETWORKS = [({**PLAIN, **QUICK}, ()), (TRM, ("--loop", "unrolled=4")), (TRANSFORMER, ())]


@pytest.mark.parametrize(("sizes", "loop"), NETWORKS, ids=["hrm", "trm", "transformer"])
def test_every_network_serves(sizes: dict[str, Any], loop: tuple[str, ...], tmp_path: Path):
    hardware = replace(PRESETS["cpu"], compile=False, precision="fp32")
    data = data_set(tmp_path / "data", SUDOKU, 32, split="train")
    recipe = {"warmup_samples": 0, "total_samples": 320}
    trainer = small_trainer(data, hardware, small_model(**sizes).config, **recipe)
    first, *_, last = losses(trainer, 4)
    assert last < first
    trainer.save(tmp_path / "step_4", {"puzzle": SUDOKU.name, "step": 4})
    forms = ("--fp16", "--int8", *loop, "--max-loss", "100")
    bundle = bundle_of(tmp_path / "step_4", tmp_path / "tiny.bundle", *forms)
    assert (bundle.manifest.name, bundle.manifest.halting.policy) == ("tiny", "verified")
    assert bundle.manifest.provenance["checkpoint"] == "step_4"
    assert set(bundle.manifest.precisions) == {"fp32", "fp16", "int8"}
    engines = ["cpu:fp32", "cpu:int8"]
    if loop:
        assert set(bundle.manifest.unrolled) == {"fp32", "fp16", "int8"}
        engines.append("unrolled:fp16")
    asked = [*requests_from(map(SUDOKU.decode, questions_made(SUDOKU, 3).tokens_NT), {})]
    for engine in engines:
        solver = from_bundles([bundle], engine)
        replies = dict(solver.solve_all(asked))
        assert len(replies) == 3
        assert all(isinstance(reply, SolveAnswer) for reply in replies.values())


def test_relational_weights_serve_a_board_they_were_not_trained_on(tmp_path: Path):
    sizes = {**relational_sizes("maze-8x8"), "low_cycles": 1}
    source = saved(tmp_path / "step_12", puzzle="maze-8x8", **sizes)
    bundle = bundle_of(source, tmp_path / "larger.bundle", "--board", "9x11")
    assert (bundle.manifest.puzzle, bundle.manifest.seq_len) == ("maze-9x11", 99)
    other = tmp_path / "other.bundle"
    saying = "choose a checkpoint of the same kind"
    assert_rejected(source, other, "--board", "sudoku-4x4", saying=saying)


@pytest.mark.parametrize(("limit", "traced"), [(9, 4), (2, 2)])
def test_name_and_halting_are_as_given(tmp_path: Path, limit: int, traced: int):
    """A puzzle may run longer or shorter than in training."""
    data = data_set(tmp_path / "data", SUDOKU, 9)
    halting = ("--policy", "learned", "--max-segments", str(limit))
    options = ("--name", "mine", *halting, "--data", str(data), "--device", "cpu")
    bundle = bundle_of(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *options)
    assert bundle.manifest.name == "mine"
    policy = bundle.manifest.halting_policy()
    assert (policy.kind, policy.max_segments) == ("learned", limit)
    assert bundle.manifest.curves["fp32"].threshold == policy.threshold
    golden = bundle.golden()
    assert len(golden.answer_SBT) == traced
    held_out = {tokens_T.tobytes() for tokens_T in questions_made(SUDOKU, 9).tokens_NT}
    assert {tokens_T.tobytes() for tokens_T in golden.tokens_BT} <= held_out


def test_json_holds_every_precision_and_the_times_by_which_auto_chooses(tmp_path: Path):
    source = saved(tmp_path / "step_12", **QUICK, max_segments=2)
    data = data_set(tmp_path / "data", SUDOKU, 80)
    out = tmp_path / "one.bundle"
    forms = ("--fp16", "--int8", "--calib", "sudoku", "--data", str(data), "--max-loss", "100")
    found = json_of(app, source, "--out", out, *FEW, *forms)
    rows = found["precisions"]
    ratios = [row["ratio"] for row in rows]
    assert [row["precision"] for row in rows] == ["fp32", "fp16", "int8"]
    assert ratios == sorted(ratios, reverse=True)
    assert found["num_held_out"] == 16
    assert rows[2]["segment_ms"].keys() == {"1", "8"}
    shown_ms = {row["precision"]: row["segment_ms"]["1"] for row in rows}
    bundle = Bundle.open(out)
    assert times.kept(bundle) == shown_ms
    assert found["auto_on_cpu"] == choose(bundle, "auto").precision


def test_calib_selects_a_run(run: Path):
    checkpoint.point(run / "best", run / "step_12")
    succeeded(app, "--calib", "sudoku", *FEW)
    assert Bundle.open(Path("sudoku.bundle")).manifest.name == "sudoku"


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ((), "give CHECKPOINT, or --calib NAME"),
        (
            ("--calib", "nowhere"),
            "selects runs/nowhere/best, which does not exist; give CHECKPOINT",
        ),
        (("--calib", "arc"), "train first: hrm-train --puzzle arc"),
        (("nowhere",), "is not a checkpoint directory"),
    ],
)
def test_without_a_checkpoint_it_says_what_to_give(options: tuple[str, ...], saying: str):
    assert saying in rejected(app, *options)


@pytest.mark.parametrize(
    ("changes", "options", "saying"),
    [
        ({}, ("--calib", "maze"), "give sudoku or the path of a data set of sudoku-4x4"),
        pytest.param({}, ("--device", "cuda"), "sees none; omit --device", marks=WITHOUT_GPU),
        ({}, ("--loop", "unrolled=0"), "give host, unrolled or unrolled=N"),
        ({}, ("--loop", f"unrolled={10**20}"), "unrolled=N with N from 1 to 1024"),
        ({}, ("--board", "sudoku"), "omit --board"),
        ({"puzzle": None}, (), "does not name its puzzle"),
        ({"puzzle": "sudoku"}, (), "has 16 positions of 6 tokens but sudoku has 81"),
        ({"num_puzzle_ids": 3}, (), "give it with --data"),
        (
            {"arch": "transformer", "max_segments": 1},
            ("--max-segments", "2"),
            "omit --max-segments",
        ),
    ],
)
def test_a_checkpoint_and_options_that_do_not_go_together_are_rejected(
    tmp_path: Path, changes: dict[str, Any], options: tuple[str, ...], saying: str
):
    source = saved(tmp_path / "step_12", **changes)
    assert_rejected(source, tmp_path / "tiny.bundle", *options, saying=saying)


def test_a_bundle_that_is_there_already_is_not_overwritten(tmp_path: Path):
    out = tmp_path / "tiny.bundle"
    out.mkdir()
    assert "already exists" in rejected(app, saved(tmp_path / "step_12"), "--out", out, *FEW)
    assert list(out.iterdir()) == []


def parts_of(options: Options, data: Path | None = None) -> tuple[Questions, Questions]:
    return find_puzzles(options, CONFIG, SUDOKU, data, Stages())


def test_calibration_is_not_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = data_set(tmp_path, SUDOKU, 20)
    calibration, held_out = parts_of(Options(int8=True, calib=str(data)))
    assert (len(calibration), len(held_out)) == (5, 15)
    monkeypatch.setattr("hrm_export.inputs.MAX_PUZZLES", 25)
    calibration, held_out = parts_of(Options(fp16=True, held_out=30))
    assert (len(calibration), len(held_out)) == (25, 30)
    measured = {tokens_T.tobytes() for tokens_T in held_out.tokens_NT}
    for tokens_T in calibration.tokens_NT:
        assert tokens_T.tobytes() not in measured


def test_puzzles_with_ids_the_model_does_not_know_are_rejected(tmp_path: Path):
    originals = datasets.Layout.of_originals(4)
    ids_N = np.arange(4, dtype=np.int32)
    layout = originals._replace(puzzle_ids=ids_N, num_puzzle_ids=4)
    data = data_set(tmp_path, SUDOKU, 4, layout=layout)
    saying = "ids up to 3, but the model knows 1; give the data set"
    with pytest.raises(datasets.DatasetError, match=saying):
        parts_of(Options(data=data), data)


def test_a_model_of_many_tasks_finds_the_data_set_of_its_run(tmp_path: Path):
    many = small_model(num_puzzle_ids=3).config
    data = tmp_path / "set"
    data.mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"data": str(data)}))
    assert data_of(None, tmp_path / "best", many, SUDOKU) == data
    assert data_of(None, tmp_path / "best", CONFIG, SUDOKU) is None
    saying = r"--data .made by hrm-data build sudoku-4x4 --out data/sudoku-4x4,"
    with pytest.raises(ValueError, match=saying):
        data_of(None, Path("runs/tiny/best"), many, SUDOKU)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run without a validation: it has a latest checkpoint and no best one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "sudoku"
    checkpoint.point(path / "latest", saved(path / "step_12", max_segments=2))
    return path


@pytest.mark.parametrize(
    ("source", "calib"), [("runs/sudoku/best", None), ("runs/sudoku", None), (None, "sudoku")]
)
def test_a_run_gives_a_checkpoint(run: Path, source: str | None, calib: str | None):
    path = None if source is None else Path(source)
    assert find_checkpoint(path, calib) == Path("runs/sudoku/latest")
    checkpoint.point(run / "best", run / "step_12")
    assert find_checkpoint(path, calib) == Path("runs/sudoku/best")


def test_the_export_says_which_checkpoint_it_took_and_ends_with_the_next_command(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    out = "my sudoku.bundle"
    monkeypatch.setattr(sys, "argv", ["hrm", str(run.absolute() / "best"), "--out", out])
    ended = succeeded(app, run / "best", "--out", out, *FEW)
    assert f"{run} has no best checkpoint; {run / 'latest'} is exported" in ended.stderr
    *_, last = ended.stdout.splitlines()
    assert re.fullmatch(r"Next: \S*hrm-serve 'my sudoku\.bundle'", last)
    _, command = last.split(": ")
    assert Bundle.open(Path(shlex.split(command)[1])).manifest.name == "my sudoku"
    card = (Path(out) / "README.md").read_text(encoding="utf-8")
    assert "\nhrm-export best --out 'my sudoku.bundle'\n" in card  # without folders
