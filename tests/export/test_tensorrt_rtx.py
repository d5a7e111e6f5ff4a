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

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in SHIPPED_BUNDLES.glob("*.bundle"))
NUM_ATTENTIONS = 24
"""A segment runs four layers six times."""
ATTENTIONS_OF_TRM = 42
"""Two layers, 3 x (6 + 1) times."""
FORMS = 12
MOST_KERNELS = 20
"""Fused kernels of a shipped segment of 2 blocks, without its matrix products."""
KERNELS_OF_BLOCK = 2.5
"""Kernels that each further block adds."""
KERNELS_OF_COLORS = 15
"""Kernels of a block of colors: 10 in float, 15 in INT8."""
MOST_BYTES = 1.5
"""Bytes of weights in a plan beside its graph: measured 1.44 to 1.46."""
MOST_BYTES_OF_MIXERS = 1.7
"""The same for mixers: measured 1.64."""
TARGET = "86"
UNKNOWN_TYPES = ("MemberType", "VariableType", "ArgumentType")

pytestmark = [
    pytest.mark.rtx,
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="the TensorRT-RTX wheels are not installed"),
]


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    trt = load_rtx()
    return {form: build(trt, form, graph) for form, graph in full_size_graphs()}


def test_every_form_builds_for_the_one_target_without_a_complaint(
    figures: dict[str, Figures],
) -> None:
    assert len(figures) == FORMS
    for form, one in figures.items():
        assert one.targets == {TARGET}, form
        assert one.complaints == (), form


def test_no_weight_is_in_a_plan_six_times(figures: dict[str, Figures]) -> None:
    for form, one in figures.items():
        most = MOST_BYTES_OF_MIXERS if "mixers" in form else MOST_BYTES
        assert one.weights_bytes <= most * one.graph_bytes, form
    for form in ("int8, rest fp16", "int8, down weight-only, rest fp16"):
        assert figures[form].weights_bytes < 0.3 * figures["fp32"].weights_bytes


def test_every_attention_is_one_fused_kernel_in_float16(figures: dict[str, Figures]) -> None:
    for form in ("fp16", "int8, rest fp16", "fp16, 900 cells"):
        assert figures[form].num_fused_attention == NUM_ATTENTIONS
    for form, one in figures.items():
        if "unrolled" in form:
            assert one.num_fused_attention == NUM_UNROLLED * NUM_ATTENTIONS
        if "trm" in form:
            expected = 0 if "mixers" in form else ATTENTIONS_OF_TRM
            assert one.num_fused_attention == expected


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_graph_builds_within_its_budget(name: str, precision: str) -> None:
    """Shipped models run 2, 4 (9x9 Sudoku) or 16 blocks (grids), with one norm each."""
    bundle = Bundle.open(find_bundle(name))
    graph = onnx.load(bundle.graph_path(precision))
    operators = [node.op_type for node in graph.graph.node]
    one = build(load_rtx(), precision, graph)
    for complaint in one.complaints:  # such as a normalization in float16
        assert "puzzle_vector_BE" in complaint  # an input of no width is unused
        assert not bundle.manifest.puzzle_vector_size
    num_blocks = operators.count("Sqrt")
    most = MOST_KERNELS + KERNELS_OF_BLOCK * (num_blocks - 2)
    if "Softmax" in operators:
        most = KERNELS_OF_COLORS * num_blocks
    assert one.targets == {TARGET}
    assert one.num_kernels <= most
    # Values of colors are wider than keys, which NVIDIA does not fuse.
    assert one.num_fused_attention == 0


def test_types_agree_with_the_stubs_of_tensorrt(tmp_path: Path) -> None:
    stubs = stubs_folder()
    if stubs is None:
        pytest.skip("tensorrt-stubs is not unpacked beside the wheels")
    engines = ROOT / "edge_runtime" / "hrm_edge_runtime" / "engines"
    rooms = [str(ROOT / name) for name in ("edge_runtime", "host", "puzzles")]
    settings: dict[str, object] = {
        "include": [os.path.relpath(engines, tmp_path)],
        "extraPaths": [str(stubs), *rooms],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.10",
        "reportMissingTypeStubs": False,
        "reportMissingModuleSource": False,
    }
    for kind in UNKNOWN_TYPES:
        settings[f"reportUnknown{kind}"] = False
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    checked = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert checked.returncode == 0, checked.stdout
