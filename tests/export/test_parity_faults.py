"""Faults put into real bundles: hrm-parity must catch each and name the place, and an honest bundle must pass.

The bundles hold a small random model with several rows in its puzzle table, in float32, float16 and INT8.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from export_tools import random_inputs, random_questions, run_once, small_model
from onnx import TensorProto, numpy_helper
from step_bundle import write_step_bundle
from typer.testing import CliRunner

from hrm_calibration.quantise import call_sites, quantise, with_outputs
from hrm_edge_runtime.contract.manifest import read_manifest, write_manifest
from hrm_edge_runtime.parity.cli import main as app
from hrm_export.forms import half_graph
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import golden_traces
from hrm_model import checkpoint
from hrm_model.hrm import HRM

QKV = "low_level.layers.0.self_attn.qkv_proj.weight"
SITE = "low_0/layer_0/attention/qkv"
SWAPPED = ("low_3/layer_0/attention/qkv", "low_3/layer_1/attention/o")
ENTRY_POINTS = """[hrm_edge.parity]
checkpoint = hrm_export.torch_engine:open_checkpoint
bisect = hrm_export.bisect:bisect
"""


def scales_of(graph: onnx.ModelProto, model: HRM) -> dict[str, float]:
    """Min-max scales of every call site over one segment of random puzzles."""
    sites = call_sites(graph)
    shown = with_outputs(graph, {site.tensor for site in sites})
    values = run_once(shown, {**random_inputs(model, 32), "fresh_B": np.ones(32, np.bool_)})
    return {site.name: float(np.abs(values[site.tensor]).max()) / 127 for site in sites}


def write_bundle(path: Path, model: HRM) -> None:
    graph = segment_graph(model)
    golden, _ = golden_traces(model, random_questions(model, 24), 0.0, 6)
    write_step_bundle(
        path,
        *(graph, half_graph(graph, ()), quantise(graph, scales_of(graph, model))),
        name="small",
        table_PE=model.puzzle_table.numpy(),
        max_segments=model.config.max_segments,
        policy="learned",
        tasks=["one", "two"],
        golden=vars(golden),
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, the bundle made from it, and the entry points as an installation has them."""
    folder = tmp_path_factory.mktemp("desk")
    model = small_model(max_segments=4)
    checkpoint.save(folder / "checkpoint", model, {"puzzle": "sudoku-4x4"})
    write_bundle(folder / "honest.bundle", model)
    info = folder / "desk-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(autouse=True)
def _installed(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(desk))


def parity(bundle: Path, *arguments: object) -> dict[str, object]:
    ended = CliRunner().invoke(app, [str(bundle), "--threads", "1", "--json", *map(str, arguments)])
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout)
    assert found["passed"] == (ended.exit_code == 0)
    return found


def faulty(desk: Path, tmp_path: Path, precision: str, change: Callable[[dict[str, TensorProto]], None]) -> Path:
    """The honest bundle with one graph's stored arrays changed, and hashes that fit."""
    path = Path(shutil.copytree(desk / "honest.bundle", tmp_path / "faulty.bundle"))
    file = path / f"step.{precision}.onnx"
    graph = onnx.load(file)
    change({tensor.name: tensor for tensor in graph.graph.initializer})
    file.write_bytes(graph.SerializeToString())
    write_manifest(path, **read_manifest(path).model_dump(exclude={"files"}))
    return path


def named(found: dict[str, object]) -> str:
    """What the bisection says after the place where it looked, which here is always the first segment."""
    match = re.fullmatch(r"in segment 1 of puzzle \d+ (.*)", str(found["bisection"]))
    assert match, found["bisection"]
    return match[1]


def flip_bit(tensor: TensorProto, bit: int, index: int = 77) -> None:
    words = np.frombuffer(tensor.raw_data, f"u{numpy_helper.to_array(tensor).itemsize}").copy()
    words[index] ^= words.dtype.type(1 << bit)
    tensor.raw_data = words.tobytes()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_honest_bundle_passes_and_no_node_diverges(desk: Path, precision: str) -> None:
    found = parity(
        *(desk / "honest.bundle", "--engine", f"cpu:{precision}", "--checkpoint", desk / "checkpoint", "--bisect")
    )
    assert found["passed"], found["breaks"]
    assert named(found).startswith("no node diverges")


def test_an_honest_bundle_says_what_its_golden_traces_say(desk: Path) -> None:
    assert parity(desk / "honest.bundle", "--engine", "cpu:fp32")["passed"]


@pytest.mark.parametrize("bit", [22, 23, 30])  # the mantissa's first, the exponent's lowest and its highest
def test_a_flipped_bit_of_a_weight_is_caught_and_named(desk: Path, tmp_path: Path, bit: int) -> None:
    bundle = faulty(desk, tmp_path, "fp32", lambda stored: flip_bit(stored[QKV], bit))
    assert not parity(bundle, "--engine", "cpu:fp32")["passed"]  # the golden traces alone see it
    found = parity(bundle, "--engine", "cpu:fp32", "--checkpoint", desk / "checkpoint", "--bisect")
    assert not found["passed"]
    assert "in segment 1" in found["breaks"][0]
    assert named(found).startswith(f"{SITE} (MatMul) is off by")
    assert f"1 of 3072 values of {QKV} are not the reference's, first at [0, 77]" in found["bisection"]


def test_a_flipped_sign_of_a_quantised_weight_is_named(desk: Path, tmp_path: Path) -> None:
    bundle = faulty(desk, tmp_path, "int8", lambda stored: flip_bit(stored[f"{QKV}/int8"], 7))
    found = parity(bundle, "--engine", "cpu:int8", "--against", "cpu:fp32", "--bisect")
    assert named(found).startswith(f"{SITE} (MatMul) is off by")
    assert f"1 of 3072 values of {QKV} are not the reference's, first at [0, 77]" in found["bisection"]


def test_swapped_scales_of_two_call_sites_are_caught_and_named(desk: Path, tmp_path: Path) -> None:
    def swap(stored: dict[str, TensorProto]) -> None:
        one, other = (stored[f"{site}/scale"] for site in SWAPPED)
        one.raw_data, other.raw_data = other.raw_data, one.raw_data

    bundle = faulty(desk, tmp_path, "int8", swap)
    found = parity(bundle, "--engine", "cpu:int8", "--against", "cpu:fp32", "--bisect")
    assert not found["passed"]
    assert "in segment 1" in found["breaks"][0]
    assert named(found).startswith(f"{SWAPPED[0]} (MatMul) is off by")
    assert "clips" in found["bisection"]


def test_a_puzzle_table_in_another_order_than_the_checkpoints_is_named_by_its_row(desk: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(desk / "honest.bundle", tmp_path / "turned.bundle"))
    np.save(bundle / "puzzle_table.npy", np.load(bundle / "puzzle_table.npy")[[0, 2, 1]])
    write_manifest(bundle, **read_manifest(bundle).model_dump(exclude={"files"}))
    found = parity(bundle, "--engine", "cpu:fp32", "--checkpoint", desk / "checkpoint", "--bisect")
    assert "in segment 1" in found["breaks"][0]
    (reason,) = found["reasons"]
    assert "given row 1 of the puzzle table (one) instead of row 2 (two)" in reason or (
        "given row 2 of the puzzle table (two) instead of row 1 (one)" in reason
    )
    assert named(found).startswith("no node diverges")  # the graphs are not to blame


def test_a_wrong_head_late_in_the_graph_is_named_and_nothing_before_it(desk: Path, tmp_path: Path) -> None:
    def double(stored: dict[str, TensorProto]) -> None:
        head = stored["lm_head.weight"]
        head.raw_data = (2 * numpy_helper.to_array(head)).tobytes()

    bundle = faulty(desk, tmp_path, "fp32", double)
    found = parity(bundle, "--engine", "cpu:fp32", "--checkpoint", desk / "checkpoint", "--bisect")
    assert named(found).startswith("logits_BTV (MatMul) is off by 1 of its norm")


def test_a_checkpoint_of_other_sizes_is_refused(desk: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "other", small_model(num_puzzle_ids=5), {"puzzle": "sudoku-4x4"})
    ended = CliRunner().invoke(app, [str(desk / "honest.bundle"), "--checkpoint", str(tmp_path / "other")])
    assert ended.exit_code == 2
    assert "num_puzzle_ids 5 where the bundle small has 3" in ended.stderr
