"""hrm-export from end to end: a checkpoint goes in, and a bundle that solves puzzles comes out.

Shapes: T tokens.
"""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from export_tools import TRM_MIXER, made_questions, relational_sizes, replayed, small_model
from typer.testing import CliRunner, Result

from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.engines.onnx import CPU, CUDA, engine_from_bundle
from hrm_edge_runtime.parity.report import breaks
from hrm_edge_runtime.solve.solvers import from_bundle
from hrm_export.cli import main as app
from hrm_export.contents import provider_of
from hrm_export.inputs import bundle_name, data_of, find_puzzles
from hrm_export.options import Options, parse_loop
from hrm_export.torch_engine import record
from hrm_host.progress import Stages
from hrm_model import checkpoint
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.data import datasets
from hrm_puzzles.puzzle import Puzzle
from hrm_train.batches import Feed, open_source
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe

SUDOKU = registry.get("sudoku-4x4")
CONFIG = small_model(num_puzzle_ids=1).config
FAKES = Path(__file__).parents[1] / "support" / "fakes"


def saved(path: Path, *, puzzle: object = "sudoku-4x4", model: HRM | None = None) -> Path:
    checkpoint.save(
        path, model or small_model(num_puzzle_ids=1, max_segments=4), {"puzzle": puzzle, "step": 12}
    )
    return path


def data_set(path: Path, count: int, puzzle: Puzzle = SUDOKU) -> Path:
    questions = made_questions(puzzle, count)
    datasets.write_split(path, "test", questions.tokens_NT, questions.labels_NT, puzzle=puzzle)
    datasets.write_identifiers(path)
    return path


def exported(source: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(
        app, [str(source), "--out", str(out), "--golden", "4", "--held-out", "40", *options]
    )


def refused(source: Path, out: Path, *options: str, saying: str) -> None:
    result = exported(source, out, *options)
    assert result.exit_code in (1, 2)  # a gate that breaks, or wrong use
    assert saying in result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "hrm-export: "
    )  # progress before it, where it takes long
    assert result.stderr.count("hrm-export: ") == 1
    assert not out.exists()


def test_a_checkpoint_becomes_a_bundle_that_replays_and_answers(tmp_path: Path) -> None:
    model = small_model(num_puzzle_ids=1, max_segments=4)
    result = exported(saved(tmp_path / "step_12", model=model), tmp_path / "tiny.bundle")
    assert result.exit_code == 0, result.output
    assert "same answers, same halting" in result.stdout
    bundle = Bundle.open(tmp_path / "tiny.bundle")
    assert (bundle.manifest.name, bundle.manifest.halting.policy) == ("tiny", "verified")
    assert bundle.manifest.provenance["checkpoint"] == "step_12"
    assert not breaks(replayed(bundle))
    assert_lane_answers_as_pytorch_does(bundle, model)


def test_a_bundle_of_tasks_names_those_that_are_right_and_those_with_generated_examples(
    tmp_path: Path,
) -> None:
    arc = registry.get("arc-7x7")
    assert isinstance(arc, Arc)
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"25ff71a9": [{"input": [[7]], "output": [[7]]}]}))
    (tmp_path / "LICENSE").write_text("MIT License")
    recipe = ArcRecipe(
        puzzle=arc.name,
        tasks="0d3d703e,25ff71a9,3618c87e",
        augment=7,
        keep_colours=True,
        hold_out_all=True,
        more=str(more),
    )
    data = tmp_path / "data"
    build_arc(recipe, arc, data)
    num_ids = open_source(data, "test", arc).num_puzzle_ids
    model = small_model(vocab_size=12, seq_len=49, num_puzzle_ids=num_ids, max_segments=2)
    source = saved(tmp_path / "step_12", puzzle=arc.name, model=model)
    result = exported(source, tmp_path / "arc.bundle", "--data", str(data))
    assert result.exit_code == 0, result.output
    manifest = Bundle.open(tmp_path / "arc.bundle").manifest
    results = manifest.held_out_tasks
    assert results is not None
    assert (results.attempts, results.num_tasks, results.generated) == (16, 3, ["25ff71a9"])
    assert manifest.provenance["held_out"] == 3
    assert manifest.provenance["solved_16_attempts"] == round(len(results.right) / 3, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_bundle_made_on_a_gpu_replays_on_the_cpu(tmp_path: Path) -> None:
    if CUDA.name not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA here: pip install 'hrm-edge[serve-gpu]'")
    forms = ("--fp16", "--int8", "--max-loss", "100", "--device", "cuda")
    result = exported(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *forms)
    assert result.exit_code == 0, result.output
    assert not breaks(replayed(Bundle.open(tmp_path / "tiny.bundle")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_an_export_runs_on_the_cpu_and_refuses_to_run_elsewhere(
    tmp_path: Path,
) -> None:
    source = saved(tmp_path / "step_12")
    assert provider_of("auto") is provider_of("cpu") is CPU
    assert exported(source, tmp_path / "here.bundle", "--device", "cpu").exit_code == 0
    refused(
        source, tmp_path / "there.bundle", "--device", "cuda", saying="sees none; omit --device"
    )


@pytest.mark.process
def test_engines_are_built_on_request_and_the_bundle_stands_where_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Over the stand-in for TensorRT and PyCUDA; the second time without either."""
    source = saved(tmp_path / "step_12")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = exported(source, tmp_path / "built.bundle", "--build-engine")
    assert result.exit_code == 0, capfd.readouterr().err
    assert ["-fp32-" in plan.name for plan in tmp_path.glob("cache/**/*.plan")] == [True]
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].removeprefix(str(FAKES)))
    assert exported(source, tmp_path / "plain.bundle", "--build-engine").exit_code == 1
    assert "python3-libnvinfer" in capfd.readouterr().err
    assert Bundle.open(tmp_path / "plain.bundle").manifest.name == "plain"


def test_a_transformer_answers_from_its_bundle_in_one_segment(tmp_path: Path) -> None:
    model = small_model(num_puzzle_ids=1, max_segments=1, arch="transformer")
    source = saved(tmp_path / "step_12", model=model)
    assert exported(source, tmp_path / "tiny.bundle").exit_code == 0
    bundle = Bundle.open(tmp_path / "tiny.bundle")
    assert not breaks(replayed(bundle))
    assert_lane_answers_as_pytorch_does(bundle, model)
    refused(source, tmp_path / "longer.bundle", "--max-segments", "2", saying="omit --max-segments")


def test_a_trm_goes_from_training_to_a_served_answer_like_any_model(tmp_path: Path) -> None:
    sizes = {**TRM_MIXER, "high_layers": 1, "low_layers": 1, "max_segments": 4}
    trainer = trainer_of(small_model(num_puzzle_ids=1, **sizes), tmp_path / "data")
    losses = [float(trainer.step().loss) for _ in range(4)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "step_4", {"puzzle": SUDOKU.name, "step": 4})
    forms = ("--fp16", "--int8", "--loop", "unrolled=4", "--max-loss", "100")
    result = exported(tmp_path / "step_4", tmp_path / "trm.bundle", *forms)
    assert result.exit_code == 0, result.output
    bundle = Bundle.open(tmp_path / "trm.bundle")
    assert not breaks(replayed(bundle))
    assert (
        set(bundle.manifest.precisions) == set(bundle.manifest.unrolled) == {"fp32", "fp16", "int8"}
    )
    assert_lane_answers_as_pytorch_does(bundle, trainer.averaged_model().cpu())
    asked = [
        SolveRequest(puzzle=SUDOKU.decode(tokens_T).tolist())
        for tokens_T in made_questions(SUDOKU, 3).tokens_NT
    ]
    for engine in ("cpu:fp32", "cpu:int8", "unrolled:fp16"):
        replies = [
            reply
            for _, reply in from_bundle(bundle, choose(bundle, engine, num_slots=2)).solve_all(
                asked
            )
        ]
        assert [type(reply) for reply in replies] == 3 * [SolveAnswer]


def trainer_of(model: HRM, path: Path) -> Trainer:
    questions = made_questions(SUDOKU, 32)
    datasets.write_split(path, "train", questions.tokens_NT, questions.labels_NT, puzzle=SUDOKU)
    datasets.write_identifiers(path)
    feed = Feed(open_source(path, "train", SUDOKU), SUDOKU, seed=0, augment=True)
    recipe = Recipe(puzzle=SUDOKU.name, batch_size=8, warmup_samples=0, total_samples=320)
    return Trainer(model, feed, recipe, replace(PRESETS["cpu"], compile=False, precision="fp32"))


def test_relational_weights_serve_a_board_they_were_not_trained_on(tmp_path: Path) -> None:
    sizes = {"low_cycles": 1, "num_puzzle_ids": 1, "max_segments": 4}
    model = small_model(**relational_sizes("maze-8x8"), **sizes)
    source = saved(tmp_path / "step_12", puzzle="maze-8x8", model=model)
    result = exported(source, tmp_path / "larger.bundle", "--board", "9x11")
    assert result.exit_code == 0, result.output
    cost = r"(\S+): 0.0% of 40 proven in 4.0 segments of [\d.]+ ms"  # untrained: nothing is proven
    assert re.findall(cost, result.stderr) == ["maze-8x8", "maze-9x11"]
    bundle = Bundle.open(tmp_path / "larger.bundle")
    assert (bundle.manifest.puzzle, bundle.manifest.seq_len) == ("maze-9x11", 99)
    assert not breaks(replayed(bundle))
    refused(
        source,
        tmp_path / "other.bundle",
        "--board",
        "sudoku-4x4",
        saying="choose a checkpoint of the same kind",
    )
    attention = saved(tmp_path / "step_13")
    refused(attention, tmp_path / "other.bundle", "--board", "sudoku", saying="omit --board")


@pytest.mark.parametrize(("limit", "traced"), [(9, 4), (2, 2)])
def test_a_puzzle_may_run_longer_or_shorter_than_in_training(
    tmp_path: Path, limit: int, traced: int
) -> None:
    source = saved(tmp_path / "step_12", model=small_model(num_puzzle_ids=1, max_segments=4))
    result = exported(source, tmp_path / "tiny.bundle", "--max-segments", str(limit))
    assert result.exit_code == 0, result.output
    bundle = Bundle.open(tmp_path / "tiny.bundle")
    assert bundle.manifest.max_segments == limit
    assert len(bundle.golden().answer_SBT) == traced
    assert not breaks(replayed(bundle))


def assert_lane_answers_as_pytorch_does(bundle: Bundle, model: HRM) -> None:
    questions = made_questions(SUDOKU, 5)
    truth = record(model, questions)
    lane = Lane(engine_from_bundle(bundle, num_slots=2, num_threads=1), SUDOKU, queue_limit=8)
    policy = bundle.manifest.halting_policy()
    for attempt_id, tokens_T in enumerate(questions.tokens_NT):
        row_E = bundle.puzzle_table[0]
        lane.submit(
            Attempt(
                attempt_id=attempt_id,
                tokens_T=tokens_T,
                puzzle_vector_E=row_E,
                policy=policy,
                arrival_s=0.0,
            )
        )
    results = [result for _ in range(20) for result in lane.step()]
    assert sorted(result.attempt_id for result in results) == [0, 1, 2, 3, 4]
    for result in results:
        assert result.segments == model.config.max_segments
        assert np.array_equal(result.answer_T, truth.answer_SBT[-1, result.attempt_id])


def test_the_pointer_file_of_a_run_will_do(tmp_path: Path) -> None:
    checkpoint.point(tmp_path / "best", saved(tmp_path / "step_12"))
    assert exported(tmp_path / "best", tmp_path / "tiny.bundle").exit_code == 0


def test_name_policy_and_threshold_stand_in_the_manifest(tmp_path: Path) -> None:
    options = ("--name", "mine", "--policy", "learned", "--threshold", "0.5")
    assert exported(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *options).exit_code == 0
    manifest = Bundle.open(tmp_path / "tiny.bundle").manifest
    assert (manifest.name, manifest.halting.policy, manifest.halting.threshold) == (
        "mine",
        "learned",
        0.5,
    )


def test_golden_puzzles_may_come_from_a_data_set(tmp_path: Path) -> None:
    options = ("--data", str(data_set(tmp_path / "data", 9)))
    assert exported(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *options).exit_code == 0
    golden = Bundle.open(tmp_path / "tiny.bundle").golden()
    held_out = {tokens_T.tobytes() for tokens_T in made_questions(SUDOKU, 9).tokens_NT}
    assert {tokens_T.tobytes() for tokens_T in golden.tokens_BT} <= held_out


def test_every_precision_is_one_column_and_one_object(tmp_path: Path) -> None:
    model = small_model(num_puzzle_ids=1, max_segments=2, high_cycles=1, low_cycles=1, low_layers=1)
    data = data_set(tmp_path / "data", 80)
    options = ("--fp16", "--int8", "--calib", "sudoku", "--data", str(data), "--max-loss", "100")
    source = saved(tmp_path / "step_12", model=model)
    report = tmp_path / "report"
    shown = exported(source, tmp_path / "one.bundle", *options, "--report", str(report))
    assert shown.exit_code == 0, shown.output
    for word in (
        "fp32",
        "fp16",
        "int8",
        "of fp32",
        "logit gap",
        "exact",
        "lost",
        "verified",
        "mean",
        "batch 8",
    ):
        assert word in shown.stdout, word
    assert {"calibration.json", "layers.png"} <= {file.name for file in report.iterdir()}
    found = json.loads(exported(source, tmp_path / "two.bundle", *options, "--json").stdout)
    assert [row["precision"] for row in found["precisions"]] == ["fp32", "fp16", "int8"]
    assert found["num_held_out"] == 40
    assert [row["ratio"] for row in found["precisions"]] == sorted(
        row["ratio"] for row in found["precisions"]
    )[::-1]
    assert {"1", "8"} == set(found["precisions"][2]["segment_ms"])


@pytest.mark.process
def test_a_killed_export_reuses_its_finished_precisions(tmp_path: Path) -> None:
    sizes = {"high_cycles": 1, "low_cycles": 1, "low_layers": 1}
    model = small_model(num_puzzle_ids=1, max_segments=4, **sizes)
    source = saved(tmp_path / "step_12", model=model)
    data = data_set(tmp_path / "data", 80)
    options = ("--fp16", "--int8", "--data", str(data), "--max-loss", "100")
    whole = tmp_path / "whole" / "tiny.bundle"
    killed = tmp_path / "killed" / "tiny.bundle"
    assert exported(source, whole, *options).exit_code == 0
    kill_after_first_precision(source, killed, *options)
    again = exported(source, killed, *options)
    assert again.exit_code == 0, again.output
    assert "reusing fp32 from" in again.stderr
    assert [found.name for found in killed.parent.iterdir()] == ["tiny.bundle"]
    for file in whole.iterdir():
        assert file.read_bytes() == (killed / file.name).read_bytes(), file.name


def kill_after_first_precision(source: Path, out: Path, *options: str) -> None:
    arguments = [str(source), "--out", str(out), "--golden", "4", "--held-out", "40", *options]
    command = [sys.executable, "-c", "from hrm_export.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment) as process:
        while not list(out.parent.glob(".tiny.bundle.forms/fp32-*.npz")):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()


def test_a_rejected_precision_is_not_measured_again(tmp_path: Path) -> None:
    source = saved(tmp_path / "step_12")
    out = tmp_path / "tiny.bundle"
    refused(source, out, "--fp16", "--max-loss", "-1", saying="fp16 loses")
    again = exported(source, out, "--fp16", "--max-loss", "100")
    assert again.exit_code == 0, again.output
    assert "reusing fp16 from" in again.stderr


def test_the_run_of_the_puzzle_is_exported_where_no_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.point(Path("runs/sudoku/best"), saved(tmp_path / "runs" / "sudoku" / "step_12"))
    result = CliRunner().invoke(app, ["--calib", "sudoku", "--golden", "4", "--held-out", "40"])
    assert result.exit_code == 0, result.output
    assert Bundle.open(tmp_path / "sudoku.bundle").manifest.name == "sudoku"


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        (("--calib", "maze"), "give sudoku or the path of a data set of sudoku-4x4"),
        (("--int8", "--calib", "arc"), "give sudoku or the path of a data set of sudoku-4x4"),
        (("--report", "int8"), "add --int8 or omit --report"),
        (("--loop", "unrolled=0"), "give host, unrolled or unrolled=N"),
        (("--policy", "hope"), "'hope' is not known"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, options: tuple[str, ...], saying: str
) -> None:
    refused(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle", *options, saying=saying)


def test_without_a_checkpoint_or_a_puzzle_it_says_what_to_give() -> None:
    result = CliRunner().invoke(app, ["--int8"])
    assert result.exit_code == 2
    assert "give CHECKPOINT, or --calib NAME" in result.stderr
    missing = CliRunner().invoke(app, ["--int8", "--calib", "nowhere"])
    assert missing.exit_code == 2
    assert (
        "--calib nowhere selects runs/nowhere/best, which does not exist; give CHECKPOINT"
        in missing.stderr
    )
    untrained = CliRunner().invoke(app, ["--int8", "--calib", "arc"])
    assert "train first: hrm-train --puzzle arc" in untrained.stderr


def test_something_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", tmp_path / "tiny.bundle", saying="is not a checkpoint directory")


def test_a_bundle_that_is_there_already_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.bundle").mkdir()
    result = exported(saved(tmp_path / "step_12"), tmp_path / "tiny.bundle")
    assert result.exit_code == 2
    assert "exists already" in result.stderr


@pytest.mark.parametrize(
    ("puzzle", "saying"),
    [
        (None, "does not name its puzzle"),
        ("chess", "chess"),
        ("sudoku", "has 16 positions of 6 tokens but sudoku has 81"),
    ],
)
def test_a_checkpoint_for_no_known_puzzle_is_refused(
    tmp_path: Path, puzzle: object, saying: str
) -> None:
    refused(saved(tmp_path / "step_12", puzzle=puzzle), tmp_path / "tiny.bundle", saying=saying)


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"num_puzzle_ids": 3, "max_segments": 4}, "give it with --data"),
        ({"num_puzzle_ids": 1, "max_segments": 6, "gain": 4.0}, "rounding alone changes"),
    ],
    ids=["many tasks", "amplifies rounding"],
)
def test_a_model_that_cannot_be_exported_as_it_is_is_refused(
    tmp_path: Path, changes: dict[str, Any], saying: str
) -> None:
    refused(
        saved(tmp_path / "step_12", model=small_model(**changes)),
        tmp_path / "tiny.bundle",
        saying=saying,
    )


def test_a_data_set_of_another_puzzle_is_refused(tmp_path: Path) -> None:
    options = ("--data", str(data_set(tmp_path / "data", 4, registry.get("sudoku-6x6"))))
    refused(
        saved(tmp_path / "step_12"),
        tmp_path / "tiny.bundle",
        *options,
        saying="give a data set of sudoku-4x4",
    )


@pytest.mark.parametrize(
    ("text", "segments"), [("host", None), ("unrolled", 0), ("unrolled=1", 1), ("unrolled=16", 16)]
)
def test_the_loop_is_the_runtimes_or_so_many_segments(text: str, segments: int | None) -> None:
    assert parse_loop(text) == segments


@pytest.mark.parametrize(
    "text", ["", "unrolled=", "unrolled=0", "unrolled=-1", "unrolled=x", "while", "host=2"]
)
def test_another_loop_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give host, unrolled or unrolled=N"):
        parse_loop(text)


def test_a_bundle_is_called_after_its_run_or_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "city"
    (run / "step_7").mkdir(parents=True)
    (run / "best").write_text("step_7")
    assert bundle_name(run / "best") == bundle_name(run / "step_7") == "city"
    assert bundle_name(tmp_path / "checkpoints" / "sudoku") == "sudoku"


def test_what_calibrates_is_not_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm_export.inputs.NUM_CALIBRATION", 25)
    calibration, held_out = find_puzzles(
        Options(fp16=True, held_out=30), CONFIG, SUDOKU, None, Stages()
    )
    assert (len(calibration), len(held_out)) == (25, 30)
    both = [
        {tokens_T.tobytes() for tokens_T in questions.tokens_NT}
        for questions in (calibration, held_out)
    ]
    assert not both[0] & both[1]


def test_of_a_small_data_set_a_quarter_calibrates(tmp_path: Path) -> None:
    questions = made_questions(SUDOKU, 20)
    datasets.write_split(tmp_path, "test", questions.tokens_NT, questions.labels_NT, puzzle=SUDOKU)
    asked = Options(int8=True, calib=str(tmp_path))
    calibration, held_out = find_puzzles(asked, CONFIG, SUDOKU, None, Stages())
    assert (len(calibration), len(held_out)) == (5, 15)


def test_float32_alone_needs_nothing_to_calibrate_with() -> None:
    calibration, held_out = find_puzzles(Options(held_out=12), CONFIG, SUDOKU, None, Stages())
    assert (len(calibration), len(held_out)) == (0, 12)


def test_puzzles_with_ids_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    questions = made_questions(SUDOKU, 4)
    layout = replace(
        datasets.Layout.of_originals(4), puzzle_ids=np.arange(4, dtype=np.int32), num_puzzle_ids=4
    )
    datasets.write_split(
        tmp_path, "test", questions.tokens_NT, questions.labels_NT, puzzle=SUDOKU, layout=layout
    )
    with pytest.raises(
        datasets.DatasetError, match="ids up to 3, but the model knows 1; give the data set"
    ):
        find_puzzles(Options(data=tmp_path), CONFIG, SUDOKU, tmp_path, Stages())


def test_a_model_of_many_tasks_finds_the_data_set_of_its_run(tmp_path: Path) -> None:
    many = small_model(num_puzzle_ids=3).config
    (tmp_path / "set").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"data": str(tmp_path / "set")}))
    assert data_of(None, tmp_path / "best", many, SUDOKU) == tmp_path / "set"
    assert data_of(None, tmp_path / "best", CONFIG, SUDOKU) is None
    with pytest.raises(
        ValueError, match=r"--data .made by hrm-data build sudoku-4x4 --out data/sudoku-4x4,"
    ):
        data_of(None, Path("runs/tiny/best"), many, SUDOKU)
