"""Every form of a full-size graph through NVIDIA's parser and strongly typed builder.

Runs if the two TensorRT-RTX wheels can be imported (`rtx_tools.REQUIREMENTS`). Necessary, not
sufficient: RTX 1.7 is a compiler of the TensorRT 11 family for another Ampere card, and nothing is
executed.
"""

import onnx
import pytest
import rtx_tools as rtx
from bundle_tools import shipped

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES

SHIPPED = [
    (path.stem, precision)
    for path in sorted(SHIPPED_BUNDLES.glob("*.bundle"))
    for precision in Bundle.open(path).manifest.precisions
]
NUM_ATTENTIONS = 24  # a segment runs four layers six times
ATTENTIONS_OF_TRM = 42  # two layers, 3 x (6 + 1) times
FORMS = 12
MOST_KERNELS = {
    "sudoku": (58, 61),
    "sudoku-hard": (58, 0),
    "sudoku-6x6": (34, 33),
    "arc-7x7": (120, 118),
    "arc-15x15": (124, 0),
}  # kernels of a shipped segment in float and in INT8
KERNELS_OF_GRID = (56, 87)
HARMLESS = ("puzzle_vector_BE", "scales to fp32")  # an unused input; scales of convolutions
MOST_BYTES = 1.5  # bytes of weights in a plan beside its graph: measured 1.44 to 1.46
MOST_BYTES_OF_MIXERS = 1.7  # the same for mixers: measured 1.64
TARGET = "86"
pytestmark = [
    pytest.mark.rtx,
    pytest.mark.slow,
    pytest.mark.skipif(not rtx.is_installed(), reason="the TensorRT-RTX wheels are not installed"),
]


@pytest.fixture(scope="module")
def figures() -> dict[str, rtx.Figures]:
    trt = rtx.load_rtx()
    return {form: rtx.build(trt, form, graph) for form, graph in rtx.full_size_graphs()}


def test_every_form_builds_without_a_complaint(figures: dict[str, rtx.Figures]) -> None:
    assert len(figures) == FORMS
    for form, one in figures.items():
        assert one.targets == {TARGET}, form
        assert one.complaints == (), form


def test_no_weight_is_in_a_plan_six_times(figures: dict[str, rtx.Figures]) -> None:
    for form, one in figures.items():
        most = MOST_BYTES_OF_MIXERS if "mixers" in form else MOST_BYTES
        assert one.weights_bytes <= most * one.graph_bytes, form
    for form in ("int8, rest fp16", "int8, down weight-only, rest fp16"):
        assert figures[form].weights_bytes < 0.3 * figures["fp32"].weights_bytes


def test_every_attention_is_one_fused_kernel_in_float16(figures: dict[str, rtx.Figures]) -> None:
    for form in ("fp16", "int8, rest fp16", "fp16, 900 cells"):
        assert figures[form].num_fused_attention == NUM_ATTENTIONS
    for form, one in figures.items():
        if "unrolled" in form:
            assert one.num_fused_attention == rtx.NUM_UNROLLED * NUM_ATTENTIONS
        if "trm" in form:
            expected = 0 if "mixers" in form else ATTENTIONS_OF_TRM
            assert one.num_fused_attention == expected


@pytest.mark.parametrize(("name", "precision"), SHIPPED)
def test_every_shipped_graph_builds_within_its_budget(name: str, precision: str) -> None:
    """Its kernels run one after the other, in one stream."""
    bundle = shipped(name)
    graph = onnx.load(bundle.graph_path(precision))
    one = rtx.build(rtx.load_rtx(), precision, graph, profiles=rtx.SMALL)
    for complaint in one.complaints:  # such as a normalization in float16
        assert any(harmless in complaint for harmless in HARMLESS), complaint
    in_float, in_int8 = MOST_KERNELS.get(name, KERNELS_OF_GRID)
    most = in_int8 if precision == "int8" else in_float
    assert one.targets == {TARGET}
    assert one.num_streams == 1
    assert one.num_kernels <= most
    # Values of colors are wider than keys, which NVIDIA does not fuse.
    assert one.num_fused_attention == 0
