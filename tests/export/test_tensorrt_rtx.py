"""Every form of a full-size graph through NVIDIA's parser and strongly typed builder.

Runs if the two TensorRT-RTX wheels can be imported (`rtx_tools.REQUIREMENTS`). Necessary, not
sufficient: RTX 1.7 is a compiler of the TensorRT 11 family for another Ampere card, and nothing is
executed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from rtx_tools import (
    NUM_UNROLLED,
    Figures,
    build,
    full_size_graphs,
    is_installed,
    load_rtx,
    stubs_folder,
)

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, find_bundle

NUM_ATTENTIONS = 24  # a segment runs four layers six times
ATTENTIONS_OF_TRM = 42  # two layers, 3 x (6 + 1) times
FORMS = 12
MOST_KERNELS, OF_BLOCK = (
    20,
    2.5,
)  # fused ones of a shipped segment of 2 blocks, without its matrix products; each more
OF_COLOURS = 15  # of a block of colours: 10 in float, 15 in INT8
MOST_BYTES, MOST_OF_MIXERS = (
    1.5,
    1.7,
)  # bytes of weights in a plan beside its graph: 1.44 to 1.46, and 1.64
TARGET = "86"

pytestmark = [
    pytest.mark.rtx,
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="the TensorRT-RTX wheels are not installed"),
]


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    trt = load_rtx()
    return {form: build(trt, form, graph) for form, graph in full_size_graphs()}


def test_every_form_parses_and_builds(figures: dict[str, Figures]) -> None:
    assert len(figures) == FORMS


def test_no_weight_stands_in_a_plan_six_times(figures: dict[str, Figures]) -> None:
    most = {form: MOST_OF_MIXERS if "mixers" in form else MOST_BYTES for form in figures}
    assert {
        form for form, one in figures.items() if one.weights_bytes > most[form] * one.graph_bytes
    } == set()
    for form in ("int8, rest fp16", "int8, down weight-only, rest fp16"):
        assert figures[form].weights_bytes < 0.3 * figures["fp32"].weights_bytes


def test_every_attention_is_one_fused_kernel_in_float16(figures: dict[str, Figures]) -> None:
    fused = {form: one.num_fused_attention for form, one in figures.items()}
    assert {fused["fp16"], fused["int8, rest fp16"], fused["fp16, 900 cells"]} == {NUM_ATTENTIONS}
    unrolled = {count for form, count in fused.items() if "unrolled" in form}
    assert unrolled == {NUM_UNROLLED * NUM_ATTENTIONS}
    trms = {form: count for form, count in fused.items() if "trm" in form}
    assert trms == {form: 0 if "mixers" in form else ATTENTIONS_OF_TRM for form in trms}


def test_every_plan_is_for_the_one_target_and_built_without_a_complaint(
    figures: dict[str, Figures],
) -> None:
    assert {form: one.targets for form, one in figures.items() if one.targets != {TARGET}} == {}
    told = {form: one.complaints for form, one in figures.items() if one.complaints}
    assert told == {}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED_BUNDLES.glob("*.bundle")))
def test_every_shipped_graph_builds_within_its_budget(name: str, precision: str) -> None:
    bundle = Bundle.open(find_bundle(name))
    graph = onnx.load(bundle.graph_path(precision))
    one, num_attentions = (
        build(load_rtx(), precision, graph),
        sum(n.op_type == "Softmax" for n in graph.graph.node),
    )
    told = [
        said
        for said in one.complaints
        if "puzzle_vector_BE" not in said or bundle.manifest.puzzle_vector_size
    ]
    assert (
        told == []
    )  # such as NVIDIA's warning of normalisations in float16; an input of no width is unused
    assert one.targets == {TARGET}
    # Shipped ones run 2, 4 (9x9 Sudoku: 22 kernels in INT8) or 16 blocks (grids: 25, and 53 in
    # INT8), a norm each.
    num_blocks = sum(n.op_type == "Sqrt" for n in graph.graph.node)
    most = OF_COLOURS * num_blocks if num_attentions else MOST_KERNELS + OF_BLOCK * (num_blocks - 2)
    assert one.num_kernels <= most
    assert (
        one.num_fused_attention == 0
    )  # of colours the values are wider than keys, which NVIDIA does not fuse


def test_types_agree_with_the_stubs_of_tensorrt(tmp_path: Path) -> None:
    stubs = stubs_folder()
    room = Path(__file__).parents[2] / "edge_runtime"
    if stubs is None:
        pytest.skip("tensorrt-stubs is not unpacked beside the wheels")
    settings = {
        "include": [os.path.relpath(room / "hrm_edge_runtime" / "engines", tmp_path)],
        "extraPaths": [
            str(stubs),
            *(str(room.parent / name) for name in ("edge_runtime", "host", "puzzles")),
        ],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.10",
        **dict.fromkeys(("reportMissingTypeStubs", "reportMissingModuleSource"), False),
        **dict.fromkeys(
            ("reportUnknownMemberType", "reportUnknownVariableType", "reportUnknownArgumentType"),
            False,
        ),
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    checked = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert checked.returncode == 0, checked.stdout
