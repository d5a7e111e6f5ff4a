"""hrm-parity catches faults in real bundles and names the place; an honest bundle passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bundle_tools import restate
from export_tools import random_inputs, random_questions, run_once, small_model
from onnx import TensorProto, numpy_helper
from step_bundle import write_step_bundle
from typer.testing import CliRunner

from hrm_calibration.half import half_graph
from hrm_calibration.quantize import call_sites, quantize, with_outputs
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import golden_traces
from hrm_model.hrm import HRM
from hrm_parity.cli import main as app

QKV = "low_level.layers.0.self_attn.qkv_proj.weight"
SWAPPED_SITES = ("low_3/layer_0/attention/qkv", "low_3/layer_1/attention/o")
Stored = dict[str, TensorProto]  # initializers of a graph by name


def min_max_scales(graph: onnx.ModelProto, model: HRM) -> dict[str, float]:
    sites = call_sites(graph)
    shown = with_outputs(graph, {site.tensor for site in sites})
    inputs = random_inputs(model, 32)
    inputs["fresh_B"] = np.ones(32, np.bool_)
    values = run_once(shown, inputs)
    return {site.name: float(np.abs(values[site.tensor]).max()) / 127 for site in sites}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three precisions with the traces of its model."""
    folder = tmp_path_factory.mktemp("desk")
    model = small_model(max_segments=4)
    graph = segment_graph(model)
    half = half_graph(graph, ())
    signed = quantize(graph, min_max_scales(graph, model))
    golden = golden_traces(model, random_questions(model, 24), 0.0, 6).golden
    write_step_bundle(
        folder / "honest.bundle",
        graph,
        half,
        signed,
        name="small",
        table_PE=model.puzzle_table.numpy(),
        max_segments=model.config.max_segments,
        policy="learned",
        tasks=["one", "two"],
        golden=vars(golden),
    )
    return folder


def parity(bundle: Path, *arguments: object) -> dict[str, Any]:
    ended = CliRunner().invoke(app, [str(bundle), "--threads", "1", "--json", *map(str, arguments)])
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout)
    assert found["passed"] == (ended.exit_code == 0)
    return found


def assert_breaks_in_segment_1(found: dict[str, Any]) -> None:
    assert not found["passed"]
    assert "in segment 1" in found["breaks"][0]


def faulty(desk: Path, out: Path, precision: str, change: Callable[[Stored], None]) -> Path:
    """The honest bundle with changed initializers in one graph."""
    bundle = Path(shutil.copytree(desk / "honest.bundle", out / "faulty.bundle"))
    file = bundle / f"step.{precision}.onnx"
    graph = onnx.load(file)
    change({tensor.name: tensor for tensor in graph.graph.initializer})
    file.write_bytes(graph.SerializeToString())
    restate(bundle)
    return bundle


def flip_bit(tensor: TensorProto, bit: int) -> None:
    item_bytes = numpy_helper.to_array(tensor).itemsize
    words = np.frombuffer(tensor.raw_data, f"u{item_bytes}").copy()
    words[77] ^= words.dtype.type(1 << bit)
    tensor.raw_data = words.tobytes()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_honest_bundle_agrees_with_pytorch(desk: Path, precision: str) -> None:
    found = parity(desk / "honest.bundle", "--engine", f"cpu:{precision}")
    assert found["passed"], found["breaks"]


@pytest.mark.parametrize("bit", [22, 30])  # the first of the mantissa, the first of the exponent
def test_a_flipped_bit_of_a_weight_is_caught(desk: Path, tmp_path: Path, bit: int) -> None:
    bundle = faulty(desk, tmp_path, "fp32", lambda stored: flip_bit(stored[QKV], bit))
    assert_breaks_in_segment_1(parity(bundle, "--engine", "cpu:fp32"))


def test_swapped_scales_of_two_call_sites_are_caught(desk: Path, tmp_path: Path) -> None:
    def swap(stored: Stored) -> None:
        one = stored[f"{SWAPPED_SITES[0]}/scale"]
        other = stored[f"{SWAPPED_SITES[1]}/scale"]
        kept = one.raw_data
        one.raw_data = other.raw_data
        other.raw_data = kept

    bundle = faulty(desk, tmp_path, "int8", swap)
    found = parity(bundle, "--engine", "cpu:int8", "--against", "cpu:fp32")
    assert_breaks_in_segment_1(found)
