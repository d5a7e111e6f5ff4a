"""A bundle is written whole or not at all, and only if its graph says what PyTorch says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundle_tools import with_manifest
from cli_tools import json_of
from export_tools import SUDOKU, random_questions, replayed, small_model
from onnx import numpy_helper

from hrm_calibration.judge import (
    Exam,
    JudgedForms,
    LimitedStages,
    OutOfTimeError,
    ParityError,
    judge_precisions,
    measure_fp32,
)
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.unrolled import UnrolledEngine
from hrm_export.bundle import write_bundle
from hrm_export.contents import Contents, served_graph
from hrm_export.onnx_graph import unrolled_graph
from hrm_export.torch_engine import golden_traces
from hrm_host.progress import Stages, stages_on
from hrm_parity.cli import ParityOptions, compare_engines
from hrm_parity.cli import main as parity_main
from hrm_parity.report import breaks

PRECISIONS = ("fp32", "fp16", "int8")
META = {"step": 7, "puzzle": "sudoku-4x4", "best_loss": float("inf"), "final": True, "nested": {}}


def small_contents(*lower: str, max_loss: float = 1.0) -> Contents:
    model = small_model(max_segments=6, high_cycles=1, low_cycles=1, low_layers=1)
    policy = HaltingPolicy(kind="learned", max_segments=6)
    exam = Exam(
        served=served_graph(model, SUDOKU, policy),
        calibration=random_questions(model, 32, seed=1),
        held_out=random_questions(model, 24),
        tasks={},
        identifiers=["<blank>", "one", "two"],
        lower=lower,
        max_loss=max_loss,
    )
    return Contents(name="small", model=model, exam=exam, meta=META)


def judged(contents: Contents, stages: LimitedStages) -> JudgedForms:
    exam = contents.exam
    fp32 = measure_fp32(exam, stages)
    traces = golden_traces(contents.model, exam.held_out, fp32.policy.threshold, 4)
    return judge_precisions(exam, fp32, traces, stages)


def written(path: Path, contents: Contents, num_unrolled: int | None = None) -> None:
    stages = LimitedStages(shown=Stages(), minutes=20.0)
    write_bundle(path, contents, judged(contents, stages), num_unrolled)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "small.bundle"
    written(path, small_contents("fp16", "int8", max_loss=100.0), num_unrolled=3)
    return Bundle.open(path)


def test_a_bundle_lists_every_form_and_what_it_lost(whole: Bundle):
    manifest = whole.manifest
    assert manifest.precisions == {name: f"step.{name}.onnx" for name in PRECISIONS}
    assert manifest.cpu_graphs == {"int8": "step.int8.cpu.onnx"}
    assert manifest.unrolled == {name: f"unrolled.{name}.onnx" for name in PRECISIONS}
    assert set(manifest.curves) == set(PRECISIONS)
    assert manifest.undecided == {}  # any loss is allowed
    graphs = (manifest.precisions, manifest.cpu_graphs, manifest.unrolled)
    expected = {"golden.npz", "identifiers.json", "parity.json", "puzzle_table.npy"}
    for names in graphs:
        expected |= set(names.values())
    assert set(manifest.files) == expected
    pages = json.loads((whole.path / "parity.json").read_text())
    assert "lost_against_fp32" not in pages["fp32"]["held_out"]
    assert 4 <= pages["fp32"]["num_candidates"] <= 16
    for precision in ("fp16", "int8"):
        lost = pages[precision]["held_out"]["lost_against_fp32"]["exact"]
        assert lost["num_puzzles"] == 24
        assert lost["low"] <= lost["loss"] <= lost["high"]


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-4), ("fp16", 0.05), ("int8", 0.5)])
def test_each_precision_is_near_pytorch(whole: Bundle, precision: str, most: float):
    report = replayed(whole, precision)
    assert report.columns["logit_gap"].worst_S[0] <= most


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_unrolled_graph_is_the_loop_over_its_step_graph(whole: Bundle, precision: str):
    graph = onnx.load(whole.path / whole.manifest.unrolled[precision])
    stated = {entry.key: entry.value for entry in graph.metadata_props}
    assert stated["num_segments"] == "3"
    assert float(stated["threshold"]) == whole.manifest.halting_policy(precision).threshold
    found = json_of(parity_main, whole.path, "--engine", f"unrolled:{precision}")
    assert found["passed"]
    assert (found["num_different_final_answers"], found["num_different_halts"]) == (0, 0)
    assert found["num_puzzles"] == len(whole.golden().tokens_BT)


def test_an_unrolled_graph_that_halts_otherwise_breaks_a_gate(whole: Bundle, tmp_path: Path):
    """The graph never halts early, the loop after one segment."""
    file = tmp_path / "other.onnx"
    step = onnx.load(whole.graph_path("fp32"))
    onnx.save(unrolled_graph(step, HaltingPolicy(kind="fixed"), 3), file)
    halting = whole.manifest.halting.model_copy(update={"threshold": -1e6})
    swapped = with_manifest(whole, halting=halting, curves={}, unrolled={"fp32": str(file)})
    found = compare_engines(swapped, ParityOptions(engine="unrolled:fp32", threads=1))
    assert found.report.num_different_halts == found.report.num_puzzles
    assert "share of different_halts at the end" in str(found.breaks[-1])


def test_a_step_graph_in_the_place_of_an_unrolled_one_is_rejected(whole: Bundle):
    swapped = with_manifest(whole, unrolled={"fp32": "step.fp32.onnx"})
    saying = "is not an unrolled graph: export the bundle again with --loop unrolled"
    with pytest.raises(BundleError, match=saying):
        UnrolledEngine(swapped, precision="fp32", num_slots=1)
    saying = r"holds no unrolled 'int8' graph but those of \['fp32'\]"
    with pytest.raises(BundleError, match=saying):
        swapped.unrolled_path("int8")


def test_provenance_holds_what_the_manifest_can_say():
    contents = small_contents()
    known = contents.provenance()
    assert known["step"] == 7
    num_weights = sum(weights.numel() for weights in contents.model.parameters())
    assert known["num_parameters"] == num_weights  # as hrm-train counts them
    assert {"exported_with_torch", "exported_with_onnxruntime"} <= set(known)
    assert not {"best_loss", "final", "nested"} & set(known)


@pytest.mark.parametrize("name", ["lm_head.weight", "q_head.weight"])
def test_a_corrupted_graph_is_rejected(tmp_path: Path, name: str):
    contents = small_contents()
    stored = {tensor.name: tensor for tensor in contents.exam.served.graph.graph.initializer}
    weights = numpy_helper.to_array(stored[name]) * np.float32(1.01)
    stored[name].CopyFrom(numpy_helper.from_array(weights, name))
    with pytest.raises(ParityError, match="differs from PyTorch"):
        written(tmp_path / "small.bundle", contents)
    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saying = r"fp16 loses .* points of exact solves .* --max-loss allows -10"
    with pytest.raises(ParityError, match=saying):
        written(tmp_path / "small.bundle", small_contents("fp16", max_loss=-10.0))
    contents = small_contents()
    served = replace(contents.exam.served, graph=onnx.ModelProto())
    unread = contents._replace(exam=contents.exam._replace(served=served))
    with pytest.raises(ValueError, match="does not load"):
        written(tmp_path / "small.bundle", unread)
    monkeypatch.setattr("hrm_export.bundle.write_data", None)  # fails behind the graphs
    with pytest.raises(TypeError):
        written(tmp_path / "small.bundle", contents)
    assert not list(tmp_path.iterdir())


def test_an_export_without_time_holds_float32_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    contents = small_contents("fp16", "int8")
    with stages_on() as shown:
        forms = judged(contents, LimitedStages(shown=shown, minutes=0.0))
    out = tmp_path / "small.bundle"
    write_bundle(out, contents, forms, None)
    bundle = Bundle.open(out)
    assert set(bundle.manifest.precisions) == {"fp32"}
    assert not breaks(replayed(bundle))
    said = capsys.readouterr().err
    assert "8 of 24 held-out puzzles are measured in 25% of 0 minutes" in said
    assert "the bundle lacks fp16 and int8: the 0 minutes are over; allow more" in said


def test_a_stage_that_is_done_at_the_limit_counts():
    limited = LimitedStages(shown=Stages(), minutes=0.0)
    limited.show("puzzles", 3, 3)
    with pytest.raises(OutOfTimeError):
        limited.show("puzzles", 2, 3)
