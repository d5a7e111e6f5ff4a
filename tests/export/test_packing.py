"""A bundle is written whole or not at all, and only where its graph says what PyTorch says."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from export_tools import random_questions, replayed, small_model
from onnx import numpy_helper
from typer.testing import CliRunner

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.factory import engine_for
from hrm_edge_runtime.engines.unrolled import UnrolledEngine
from hrm_edge_runtime.parity.cli import main as parity_main
from hrm_edge_runtime.parity.report import breaks
from hrm_export.contents import Contents, served_graph
from hrm_export.finished import FinishedForms
from hrm_export.forms import Form
from hrm_export.judge import ParityError
from hrm_export.options import Options, parse_loop
from hrm_export.precisions import judge_precisions
from hrm_export.recipe import write_bundle
from hrm_host.progress import Stages
from hrm_puzzles import registry

OPTIONS = Options(golden=4)


def small_contents(**changes: Any) -> Contents:
    model = small_model(max_segments=6, **changes)
    served = served_graph(
        model, registry.get("sudoku-4x4"), HaltingPolicy(kind="learned", max_segments=6)
    )
    return Contents(
        name="small",
        model=model,
        served=served,
        calibration=random_questions(model, 32, seed=1),
        held_out=random_questions(model, 24),
        identifiers=["<blank>", "one", "two"],
        tasks={},
        meta={
            "step": 7,
            "puzzle": "sudoku-4x4",
            "best_loss": float("inf"),
            "final": True,
            "nested": {},
        },
    )


def written(path: Path, contents: Contents | None = None, **changes: Any) -> list[Form]:
    contents = contents or small_contents()
    options = replace(OPTIONS, **changes)
    stages = Stages()
    finished = FinishedForms(path, contents, options, stages)
    judged = judge_precisions(contents, options, finished, stages)
    write_bundle(path, contents, judged, parse_loop(options.loop))
    return judged.forms


def bundles_in(path: Path) -> list[Path]:
    """Bundles and half-written ones; precisions kept for a second call are neither."""
    return [found for found in path.iterdir() if found.suffix != ".forms"]


def test_what_is_written_opens_and_replays(tmp_path: Path) -> None:
    contents = small_contents()
    (result,) = written(tmp_path / "small.bundle", contents, threshold=0.25)
    bundle = Bundle.open(tmp_path / "small.bundle")
    assert not breaks(result.parity["step.fp32.onnx"])
    assert not breaks(replayed(bundle))
    assert np.array_equal(bundle.puzzle_table, contents.model.puzzle_table.numpy())
    assert bundle.manifest.halting_policy() == HaltingPolicy(
        kind="learned", threshold=0.25, max_segments=6
    )
    assert set(bundle.manifest.files) == {
        *("step.fp32.onnx", "golden.npz", "identifiers.json", "parity.json", "puzzle_table.npy")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Every precision in every form."""
    path = tmp_path_factory.mktemp("bundles") / "small.bundle"
    contents = small_contents(high_cycles=1, low_cycles=1, low_layers=1)
    written(path, contents, fp16=True, int8=True, loop="unrolled=3", max_loss=100.0)
    return Bundle.open(path)


def test_every_precision_stands_in_the_manifest_in_every_form(whole: Bundle) -> None:
    manifest = whole.manifest
    assert manifest.precisions == {name: f"step.{name}.onnx" for name in ("fp32", "fp16", "int8")}
    assert manifest.cpu_graphs == {"int8": "step.int8.cpu.onnx"}
    assert manifest.unrolled == {name: f"unrolled.{name}.onnx" for name in ("fp32", "fp16", "int8")}
    assert set(manifest.curves) == {"fp32", "fp16", "int8"}


def test_each_precision_says_nearly_what_pytorch_says(whole: Bundle) -> None:
    reports = {precision: replayed(whole, precision) for precision in whole.manifest.precisions}
    gaps = {
        precision: report.columns["logit_gap"].worst_S[0] for precision, report in reports.items()
    }
    assert gaps["fp32"] <= 1e-4
    assert gaps["fp16"] <= 0.05
    assert gaps["int8"] <= 0.5


def test_the_two_forms_of_int8_are_one_function(whole: Bundle) -> None:
    """Except for float16 rounding in the portable one, which may move a value by one INT8 step.

    ONNX Runtime 1.23 rounds every value so, newer ones few.
    """
    pages = json.loads((whole.path / "parity.json").read_text())["int8"]["golden"]
    gaps = [
        pages[name]["segments"]["logit_gap"]["worst"][0]
        for name in ("step.int8.onnx", "step.int8.cpu.onnx")
    ]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.1)


def test_the_bundle_says_what_each_precision_lost_and_how_sure_that_is(whole: Bundle) -> None:
    pages = json.loads((whole.path / "parity.json").read_text())
    assert "lost_against_fp32" not in pages["fp32"]["held_out"]
    assert 4 <= pages["fp32"]["num_candidates"] <= 16
    for precision in ("fp16", "int8"):
        lost = pages[precision]["held_out"]["lost_against_fp32"]["exact"]
        assert lost["num_puzzles"] == 24
        assert lost["low"] <= lost["loss"] <= lost["high"]


def test_the_unrolled_graph_halts_at_the_threshold_of_its_precision(whole: Bundle) -> None:
    for precision, name in whole.manifest.unrolled.items():
        stated = {entry.key: entry.value for entry in onnx.load(whole.path / name).metadata_props}
        assert stated["num_segments"] == "3"
        assert float(stated["threshold"]) == whole.manifest.halting_policy(precision).threshold


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_parity_compares_the_unrolled_graph_with_the_loop_over_its_step_graph(
    whole: Bundle, precision: str
) -> None:
    ended = CliRunner().invoke(
        parity_main, [str(whole.path), "--engine", f"unrolled:{precision}", "--json"]
    )
    found = json.loads(ended.output)
    assert (
        ended.exit_code,
        found["passed"],
        found["different_answers"],
        found["different_segments"],
    ) == (
        0,
        True,
        0,
        0,
    )
    assert found["num_puzzles"] == len(whole.golden().tokens_BT)
    assert found["margin_gap"] < 1e-5


def test_a_server_over_the_unrolled_graph_answers_after_as_many_segments_as_the_loop(
    whole: Bundle,
) -> None:
    said = []
    for engine in ("unrolled", "cpu"):
        opened = engine_for(whole, engine=engine, num_slots=3, num_threads=1)
        lane = Lane(opened, whole.puzzle, queue_limit=9)
        golden = whole.golden()
        policy = HaltingPolicy(
            kind="learned", threshold=whole.manifest.halting_policy().threshold, max_segments=3
        )
        attempts = [
            Attempt(
                attempt_id=row,
                tokens_T=golden.tokens_BT[row],
                puzzle_vector_E=whole.puzzle_table[0],
                policy=policy,
                arrival_s=0.0,
            )
            for row in range(len(golden.tokens_BT))
        ]
        ended = sorted(run_all(lane, attempts), key=lambda one: one.attempt_id)
        said.append(
            [(one.segments, one.halted_by, np.asarray(one.answer_T).tobytes()) for one in ended]
        )
        opened.close()
    assert said[0] == said[1]


def test_a_step_graph_in_the_place_of_an_unrolled_one_is_refused(whole: Bundle) -> None:
    swapped = whole.manifest.model_copy(update={"unrolled": {"fp32": "step.fp32.onnx"}})
    with pytest.raises(
        BundleError, match=r"is not an unrolled graph: export the bundle again with --loop unrolled"
    ):
        UnrolledEngine(replace(whole, manifest=swapped), precision="fp32", num_slots=1)
    with pytest.raises(
        BundleError, match=r"holds no unrolled 'int8' graph but those of \['fp32'\]"
    ):
        replace(whole, manifest=swapped).unrolled_path("int8")


def test_a_threshold_that_is_not_given_is_chosen_from_the_curve(tmp_path: Path) -> None:
    for name, given in (("chosen", None), ("given", 0.5)):
        written(tmp_path / name, threshold=given)
    chosen, given = (Bundle.open(tmp_path / name).manifest for name in ("chosen", "given"))
    assert given.curves["fp32"].threshold == given.halting.threshold == 0.5
    curve = chosen.curves["fp32"]
    assert chosen.halting.threshold == curve.threshold
    last = max(
        curve.points, key=lambda point: point.threshold
    )  # nobody stops before the last segment
    point = next(point for point in curve.points if point.threshold == curve.threshold)
    assert point.exact >= last.exact - 0.005
    assert point.mean_segments <= last.mean_segments == 6


def test_a_precision_that_loses_too_much_is_refused_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ParityError, match=r"fp16 loses .* points of exact solves .* --max-loss allows -1"
    ):
        written(tmp_path / "small.bundle", fp16=True, max_loss=-1.0)
    assert not bundles_in(tmp_path)


def test_the_same_checkpoint_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        written(tmp_path / name, fp16=True)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes(), file.name


def test_provenance_holds_what_the_manifest_can_say() -> None:
    said = replace(small_contents(), model=small_model()).provenance()
    assert said["step"] == 7
    assert (
        said["num_parameters"]
        == sum(tensor.numel() for tensor in small_model().parameters()) + 2 * 32
    )
    assert {"exported_with_torch", "exported_with_onnxruntime"} <= set(said)
    assert not {"best_loss", "final", "nested"} & set(said)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "q_head.weight", "low_level.layers.1.self_attn.qkv_proj.weight"]
)
def test_a_corrupted_graph_is_refused_and_nothing_is_left_behind(tmp_path: Path, name: str) -> None:
    contents = small_contents()
    tensor = next(
        tensor for tensor in contents.served.graph.graph.initializer if tensor.name == name
    )
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), name))
    with pytest.raises(ParityError, match="differs from PyTorch"):
        written(tmp_path / "small.bundle", contents)
    assert not bundles_in(tmp_path)


def test_a_graph_for_another_model_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    contents = small_contents()
    contents = replace(contents, served=replace(contents.served, graph=onnx.ModelProto()))
    with pytest.raises(ValueError, match="does not load"):
        written(tmp_path / "small.bundle", contents)
    assert not bundles_in(tmp_path)


def test_a_bundle_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "small.bundle").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        written(tmp_path / "small.bundle")
    assert not list((tmp_path / "small.bundle").iterdir())


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from test_packing import small_contents, written
contents = small_contents()
for number in range(10_000):
    written(Path(sys.argv[1]) / f"{number}.bundle", contents)
    print(number, flush=True)
"""


@pytest.mark.process
def test_a_kill_during_writing_leaves_no_half_bundle(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)]
    search_path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": search_path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        while not list(tmp_path.glob(".*.forms")):  # the next one is under way
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    bundles = list(tmp_path.glob("*.bundle"))
    assert bundles
    for path in bundles:
        Bundle.open(path)
