"""What is built for a bundle by default, and with which settings."""

import json

import onnx
import pytest
from stand_ins import SetUp, with_precisions
from typer.testing import CliRunner

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines import engine
from hrm_edge_runtime.engines.trt import build, building, cache, profiles


@pytest.mark.parametrize(
    ("few_weights", "in_the_bundle", "precisions"),
    [
        (1_000_000, ["fp16", "int8"], ["fp16"]),
        (10, ["fp16", "int8"], ["fp16", "int8"]),
        (1_000_000, ["int8"], ["int8"]),
    ],
)
def test_int8_is_built_by_default_for_large_models_or_if_there_is_nothing_else(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    few_weights: int,
    in_the_bundle: list[str],
    precisions: list[str],
) -> None:
    graph = onnx.load(bundle.graph_path("fp32"))
    monkeypatch.setattr(profiles, "FEW_WEIGHTS", few_weights)
    bundle = with_precisions(bundle, **dict.fromkeys(in_the_bundle, graph))
    assert building.worth_a_try(bundle) == precisions


def test_every_shipped_model_is_built_in_fp16_alone() -> None:
    for name in shipped_bundles():
        assert building.worth_a_try(Bundle.open(find_bundle(name))) == ["fp16"], name


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
) -> None:
    monkeypatch.setattr(engine, "has_card", lambda: has_card)
    assert engine.max_slots(Bundle.open(find_bundle(name)), engine_name) == slots


def test_an_engine_uses_one_stream_and_trying_a_kernel_a_quarter_of_an_8_gb_board(
    bundle: Bundle, device: SetUp
) -> None:
    del device
    assert CliRunner().invoke(build.app, [str(bundle.path), "--slots=1"]).exit_code == 0
    (plan,) = cache.plan_folder().glob("*.plan")
    settings = json.loads(plan.read_bytes().partition(b"\n")[0])
    assert settings["aux_streams"] == 0
    assert settings["limits"] == {"WORKSPACE": 512 << 20, "TACTIC_DRAM": 2 << 30}
