"""From a bundle to an engine: names, refusals, precisions, slots, and ONNX Runtime on a CPU."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from bundle_tools import shipped, with_manifest
from cli_tools import ran
from stand_ins import with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_edge_runtime.engines import engine
from hrm_edge_runtime.engines import onnx as onnx_engine
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.factory import engine_for, num_gpus, parse_choice
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.engines.trt import building
from hrm_edge_runtime.engines.trt import engine as trt_engine
from hrm_edge_runtime.engines.trt.cuda import Gpu
from hrm_parity.walk import Side, walk
from hrm_puzzles.data.sources import questions_made

# the path of a device, in the CPU's memory
ON_DEVICE = onnx_engine.Provider(name="CPUExecutionProvider", options={}, device="cpu")
without_gpu = pytest.mark.skipif(num_gpus() > 0, reason="this machine has a GPU")


@pytest.mark.parametrize("text", ["gpu", "cpu:", ""])
def test_what_names_no_engine_is_wrong_use(text: str):
    with pytest.raises(ValueError, match="does not name an engine: write ENGINE") as raised:
        parse_choice(text)
    assert not isinstance(raised.value, EngineUnavailableError)  # exit code 2 instead of 3


@without_gpu
def test_a_provider_that_is_not_there_is_refused_and_not_replaced(tiny_bundle: Path):
    remedy = r"install hrm-edge\[serve-gpu\] .*onnxruntime-gpu"
    with pytest.raises(EngineUnavailableError, match=remedy):
        engine_for(Bundle.open(tiny_bundle), engine="cuda", num_slots=1)


def test_an_engine_with_its_carry_on_a_device_says_the_same(bundle: Bundle):
    sides = []
    for provider in (onnx_engine.CPU, ON_DEVICE):
        engine = OnnxEngine(
            bundle.graph_path("fp32"),
            num_slots=3,
            num_threads=1,
            provider=provider,
            want_logits=True,
        )
        policy = bundle.manifest.halting_policy()
        side = Side(name="", engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)
        sides.append(side)
    questions = questions_made(bundle.puzzle, 9)
    report = walk(*sides, questions, bundle.puzzle, num_segments=6, to_the_end=False)
    assert "carry_drift" in report.columns
    for column in report.columns.values():
        assert column.worst_S.max() == 0


def without_logits(model: onnx.ModelProto) -> None:
    del model.graph.output[-1]


def with_a_fixed_batch(model: onnx.ModelProto) -> None:
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1


@pytest.mark.parametrize(
    ("change", "saying"),
    [(without_logits, "lacks logits_BTV"), (with_a_fixed_batch, "open batch axis")],
)
def test_a_graph_that_is_not_a_step_graph_is_rejected(
    tiny_bundle: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], None], saying: str
):
    model = onnx.load(tiny_bundle / "step.fp32.onnx")
    change(model)
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(BundleError, match=saying):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def test_a_limit_of_the_machine_is_no_fault_of_the_bundle(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to allocate memory for requested buffer of size 1024")

    monkeypatch.setattr("onnxruntime.InferenceSession", fail)
    with pytest.raises(EngineUnavailableError, match="raise its limit"):
        engine_for(bundle, engine="cpu", num_slots=1)


def test_an_onnxruntime_that_does_not_load_is_named(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))  # pip left a folder
    monkeypatch.delitem(sys.modules, onnx_engine.__name__)
    monkeypatch.delattr(onnx_engine.__name__)
    with pytest.raises(
        EngineUnavailableError, match=r"does not load .*InferenceSession.*\[serve\]"
    ):
        engine_for(bundle, engine="cpu:fp32", num_slots=1)


def test_without_tensorrt_or_a_driver_the_remedy_is_named(tiny_bundle: Path):
    bundle = Bundle.open(tiny_bundle)
    with pytest.raises(EngineUnavailableError, match="TensorRT is not installed for this Python"):
        engine_for(bundle, engine="tensorrt:fp32", num_slots=1)
    if num_gpus() == 0:  # torch brings cuda-bindings if it was built for CUDA
        with pytest.raises(EngineUnavailableError, match=r"hrm-edge\[jetson"):
            Gpu()


OPEN_A_MODEL = """
import {first}
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.factory import engine_for
bundle = Bundle.open(find_bundle("sudoku-6x6"))
engine_for(bundle, engine="cpu", num_slots=1)
"""


@pytest.mark.process
@pytest.mark.parametrize("first", ["hrm_edge_runtime", "hrm_calibration", "hrm_export"])
def test_opening_a_model_leaves_nothing_in_the_home_directory(tmp_path: Path, first: str):
    environment = dict(os.environ)
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    environment.update(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = ran(sys.executable, "-c", OPEN_A_MODEL.format(first=first), env=environment)
    assert list(tmp_path.rglob("*")) == []
    assert "telemetry" not in done.stderr


@pytest.mark.parametrize(
    ("few_weights", "in_the_bundle", "undecided", "precisions"),
    [
        (1_000_000, ["fp16", "int8"], [], ["fp16"]),
        (10, ["fp16", "int8"], [], ["fp16", "int8"]),
        (1_000_000, ["int8"], [], ["int8"]),
        (10, ["fp16", "int8"], ["int8"], ["fp16"]),
        (10, ["fp16", "int8"], ["fp16", "int8"], ["fp32"]),
        (1_000_000, ["fp16", "int8"], ["fp32", "fp16", "int8"], ["fp16"]),  # nothing is better
    ],
)
def test_decided_precisions_are_built_and_int8_for_large_models_or_if_there_is_nothing_else(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    few_weights: int,
    in_the_bundle: list[str],
    undecided: list[str],
    precisions: list[str],
):
    graph = onnx.load(bundle.graph_path("fp32"))
    monkeypatch.setattr(trt_engine, "FEW_WEIGHTS", few_weights)
    bundle = with_precisions(bundle, **dict.fromkeys(in_the_bundle, graph))
    doubts = dict.fromkeys(undecided, "loss 2 ± 3 points")
    assert building.worth_a_try(with_manifest(bundle, undecided=doubts)) == precisions


def test_every_small_shipped_model_is_built_in_fp16_alone_and_the_large_one_in_int8():
    for name in shipped_bundles():
        precision = "int8" if name == "sudoku-hrm" else "fp16"
        assert building.worth_a_try(shipped(name)) == [precision], name


@pytest.mark.parametrize(
    ("name", "has_card", "engine_name", "slots"),
    [
        ("sudoku", True, "tensorrt", 64),
        ("sudoku", True, "cuda", 64),
        ("sudoku", False, "tensorrt", 16),
        ("sudoku", True, "cpu", 8),
        ("maze", True, "cuda", 8),
    ],
)
def test_a_card_is_tried_with_64_slots_unless_the_sequence_is_long(
    monkeypatch: pytest.MonkeyPatch, name: str, has_card: bool, engine_name: str, slots: int
):
    monkeypatch.setattr(engine, "has_card", lambda: has_card)
    assert engine.max_slots(shipped(name), engine_name) == slots
