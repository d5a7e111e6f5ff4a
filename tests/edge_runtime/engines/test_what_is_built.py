"""What is built for a bundle by default, and with which settings."""

import json
from pathlib import Path

import onnx
import pytest
from stand_ins import SetUp, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines.trt import api, building
from hrm_edge_runtime.engines.trt.api import BuildSettings
from hrm_host.progress import Stages


@pytest.mark.parametrize(
    ("few_weights", "precisions"), [(1_000_000, ["fp16"]), (10, ["fp16", "int8"])]
)
def test_int8_is_built_by_default_for_large_models_only(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, few_weights: int, precisions: list[str]
) -> None:
    graph = onnx.load(bundle.graph_path("fp32"))
    monkeypatch.setattr(building, "FEW_WEIGHTS", few_weights)
    both = with_precisions(bundle, fp16=graph, int8=graph)
    assert building.worth_a_try(both) == precisions


def test_a_small_model_without_fp16_is_built_in_int8(bundle: Bundle) -> None:
    graph = onnx.load(bundle.graph_path("fp32"))
    assert building.worth_a_try(with_precisions(bundle, int8=graph)) == ["int8"]


def test_every_shipped_model_is_built_in_fp16_alone() -> None:
    for name in shipped_bundles():
        assert building.worth_a_try(Bundle.open(find_bundle(name))) == ["fp16"], name


def test_an_engine_uses_one_stream(bundle: Bundle, device: SetUp, tmp_path: Path) -> None:
    del device
    plan = api.plan_from_onnx(
        bundle.graph_path("fp32"),
        [{"tokens_BT": (1, 16)}],
        settings=BuildSettings(),
        stages=Stages(),
        timing_cache=tmp_path / "timing.cache",
    )
    settings, _, _ = plan.partition(b"\n")
    assert json.loads(settings)["aux_streams"] == 0
