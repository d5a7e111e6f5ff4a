"""Every form of a full-size graph through NVIDIA's parser and strongly typed builder.

TensorRT-RTX builds ahead of time without a GPU (`make check-rtx` installs its two wheels).
Necessary, not sufficient: RTX 1.7 is a compiler of the TensorRT 11 family for GeForce cards, so it
builds for the nearest relative of Orin that it knows, compute capability 8.6. Nothing is executed.
"""

import contextlib
import ctypes
import importlib.util
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
import torch
from bundle_tools import shipped
from export_tools import ranges_of

from hrm_calibration.half import float32_nodes, half_graph
from hrm_calibration.quantize import call_sites, quantize
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_edge_runtime.engines.trt.api import ShapeRange, plan_from_onnx
from hrm_edge_runtime.engines.trt.engine import Profile
from hrm_export.onnx_graph import unrolled_graph
from hrm_export.segment import segment_graph
from hrm_host.progress import Stages
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_puzzles import registry

LIBRARIES = ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*")
LARGE = (Profile.fixed(1), Profile.fixed(8))
SMALL = (Profile(min_rows=1, best_rows=8, max_rows=16),)
NUM_UNROLLED = 2
TRM = {
    "arch": "trm",
    "high_cycles": 3,
    "low_cycles": 6,
    "high_layers": 2,
    "low_layers": 2,
    "puzzle_positions": 16,
    "halt_rule": "q_halt",
}
MIXERS = {"blocks": "mixer", "positions": "none"}
TRMS = {"trm": {}, "trm of mixers": MIXERS}
FUSED_ATTENTION = re.compile(rb"_gemm_mha_v2_0x[0-9a-f]+")
TARGETS = re.compile(rb"sm_?(\d{2,3})\b")
NAMES_PER_ATTENTION = 3  # times that the plan spells the name of a fused attention
WEIGHTS = re.compile(r"Total Weights Memory: (\d+)")
LAYER = re.compile(r"^Name: .+?_myl(\d+)_\d+, LayerType: \w+, .*?StreamId: (\d+)", re.MULTILINE)
SHIPPED = [
    (name, precision)
    for name in shipped_bundles()
    for precision in shipped(name).manifest.precisions
]
NUM_ATTENTIONS = 24  # a segment runs four layers six times
ATTENTIONS_OF_TRM = 42  # two layers, 3 x (6 + 1) times
FORMS = 12
MOST_KERNELS = {
    "sudoku": (58, 61),
    "sudoku-hard": (58, 0),
    "sudoku-hrm": (35, 29),
    "sudoku-6x6": (34, 33),
    "arc-7x7": (120, 118),
    "arc-15x15": (124, 0),
}  # kernels of a shipped segment in float and in INT8
KERNELS_OF_GRID = (56, 87)
HARMLESS = ("puzzle_vector_BE", "scales to fp32")  # an unused input; scales of convolutions
MOST_BYTES = 1.5  # bytes of weights in a plan beside its graph: measured 1.44 to 1.46
MOST_BYTES_OF_MIXERS = 1.7  # the same for mixers: measured 1.64
TARGET = "86"


class Figures(NamedTuple):
    """One plan; weights and kernels of all profiles come from the builder's log.

    `num_kernels` is that of the profile that has most. `targets` are the architectures whose code
    the plan holds. `complaints` are the warnings and errors of the log.
    """

    graph_bytes: int
    weights_bytes: int
    num_fused_attention: int
    num_kernels: int
    num_streams: int
    targets: frozenset[str]
    complaints: tuple[str, ...]


def is_installed() -> bool:
    modules = ("tensorrt_rtx_bindings", "onnxruntime_ep_nv_tensorrt_rtx")
    return all(importlib.util.find_spec(module) for module in modules)


def load_rtx() -> Any:
    """Open the libraries of the other wheel and return the bindings, which replace `tensorrt`."""
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    folder = Path(spec.origin).parent
    for pattern in LIBRARIES:
        library = min(folder.glob(pattern))
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    import tensorrt_rtx_bindings

    sys.modules["tensorrt"] = tensorrt_rtx_bindings
    return tensorrt_rtx_bindings


pytestmark = [
    pytest.mark.rtx,
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="the TensorRT-RTX wheels are not installed"),
]


def full_size_graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the forms of random models at full size, as hrm-export makes them.

    These are a 27 M model for 9x9 Sudokus, one for 30x30 mazes, and TRMs.
    """
    model = _model("sudoku")
    step = segment_graph(model)
    ranges = ranges_of(model, registry.get("sudoku"))
    scales = _scales(step, ranges)
    signed = quantize(step, scales)
    down = [site.weight for site in call_sites(step) if "down" in site.weight]
    lighter = quantize(step, scales, weight_only=down)
    kept = float32_nodes(step, ranges)
    half = half_graph(step, kept)
    half_int8 = _half(signed, ranges)
    yield "fp32", step
    yield "fp16", half
    yield "int8, rest fp16", half_int8
    yield "int8, rest fp32", signed
    yield "int8, down weight-only, rest fp16", _half(lighter, ranges)
    policy = HaltingPolicy(kind="learned", max_segments=NUM_UNROLLED)
    yield f"fp16, unrolled {NUM_UNROLLED} times", unrolled_graph(half, policy, NUM_UNROLLED)
    yield f"int8, unrolled {NUM_UNROLLED} times", unrolled_graph(half_int8, policy, NUM_UNROLLED)
    yield "fp16, 900 cells", half_graph(segment_graph(_model("maze")), kept)
    for name, changes in TRMS.items():
        model = _model("sudoku", **TRM, **changes)
        step = segment_graph(model)
        ranges = ranges_of(model, registry.get("sudoku"))
        signed = quantize(step, _scales(step, ranges))
        yield f"{name}, fp16", _half(step, ranges)
        yield f"{name}, int8, rest fp16", _half(signed, ranges)


def _half(graph: onnx.ModelProto, ranges: Mapping[str, float]) -> onnx.ModelProto:
    return half_graph(graph, float32_nodes(graph, ranges))


def _model(puzzle_name: str, **changes: Any) -> HRM:
    puzzle = registry.get(puzzle_name)
    torch.manual_seed(0)
    sizes = {"vocab_size": puzzle.vocab_size, "seq_len": puzzle.seq_len, **changes}
    return model_of(HRMConfig(**sizes)).eval()


def build(trt: Any, graph: onnx.ModelProto, *, profiles: tuple[Profile, ...] = LARGE) -> Figures:
    """Parse and build a graph with the product's own builder, for the nearest known target."""
    with tempfile.TemporaryDirectory() as folder, _builder_log() as log:
        file = Path(folder) / "graph.onnx"
        onnx.save(graph, file)
        plan = plan_from_onnx(
            file,
            [_ranges_of(graph, profile) for profile in profiles],
            stages=Stages(),
            timing_cache=None,  # RTX would look for a GPU
            adjust=lambda config: _aim(trt, config),
        )
        graph_bytes = file.stat().st_size
    text = "\n".join(record.getMessage() for record in log)
    complaints = [one.getMessage() for one in log if one.levelno >= logging.WARNING]
    kernels = LAYER.findall(text)
    assert len(kernels) == text.count(", LayerType: ")
    kernels_of_profile = Counter(profile for profile, _ in kernels)
    targets = [target.decode() for target in TARGETS.findall(plan)]
    num_names = len(FUSED_ATTENTION.findall(plan))
    return Figures(
        graph_bytes=graph_bytes,
        weights_bytes=max(map(int, WEIGHTS.findall(text))),
        num_fused_attention=num_names // (NAMES_PER_ATTENTION * len(profiles)),
        num_kernels=max(kernels_of_profile.values()),
        num_streams=len({stream for _, stream in kernels}),
        targets=frozenset(targets),
        complaints=tuple(complaints),
    )


@contextlib.contextmanager
def _builder_log() -> Iterator[list[logging.LogRecord]]:
    handler = BufferingHandler(capacity=10**9)
    log = logging.getLogger("hrm_edge_runtime.tensorrt")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.buffer
    finally:
        log.removeHandler(handler)


def _aim(trt: Any, config: Any) -> None:
    """Target the nearest relative of an Orin.

    Without a number of targets the call returns false and takes none.
    """
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    assert config.get_compute_capability(0) == trt.ComputeCapability.SM86


def _ranges_of(graph: onnx.ModelProto, profile: Profile) -> Mapping[str, ShapeRange]:
    ranges = {}
    for value in graph.graph.input:
        _, *row = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ranges[value.name] = ShapeRange(
            (profile.min_rows, *row), (profile.best_rows, *row), (profile.max_rows, *row)
        )
    return ranges


def _scales(step: onnx.ModelProto, ranges: Mapping[str, float]) -> dict[str, float]:
    scales = {}
    for site in call_sites(step):
        largest = ranges.get(site.tensor, 127.0)
        scales[site.name] = largest / 127
    return scales


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    trt = load_rtx()
    return {form: build(trt, graph) for form, graph in full_size_graphs()}


def test_every_form_builds_without_a_complaint(figures: dict[str, Figures]):
    assert len(figures) == FORMS
    for form, one in figures.items():
        assert one.targets == {TARGET}, form
        assert one.complaints == (), form


def test_no_weight_is_in_a_plan_six_times(figures: dict[str, Figures]):
    for form, one in figures.items():
        most = MOST_BYTES_OF_MIXERS if "mixers" in form else MOST_BYTES
        assert one.weights_bytes <= most * one.graph_bytes, form
    for form in ("int8, rest fp16", "int8, down weight-only, rest fp16"):
        assert figures[form].weights_bytes < 0.3 * figures["fp32"].weights_bytes


def test_every_attention_is_one_fused_kernel_in_float16(figures: dict[str, Figures]):
    for form in ("fp16", "int8, rest fp16", "fp16, 900 cells"):
        assert figures[form].num_fused_attention == NUM_ATTENTIONS
    for form, one in figures.items():
        if "unrolled" in form:
            assert one.num_fused_attention == NUM_UNROLLED * NUM_ATTENTIONS
        if "trm" in form:
            expected = 0 if "mixers" in form else ATTENTIONS_OF_TRM
            assert one.num_fused_attention == expected


@pytest.mark.parametrize(("name", "precision"), SHIPPED)
def test_every_shipped_graph_builds_within_its_budget(name: str, precision: str):
    """Its kernels run one after the other, in one stream."""
    bundle = shipped(name)
    graph = onnx.load(bundle.graph_path(precision))
    one = build(load_rtx(), graph, profiles=SMALL)
    for complaint in one.complaints:  # such as a normalization in float16
        assert any(harmless in complaint for harmless in HARMLESS), complaint
    in_float, in_int8 = MOST_KERNELS.get(name, KERNELS_OF_GRID)
    most = in_int8 if precision == "int8" else in_float
    assert one.targets == {TARGET}
    assert one.num_streams == 1
    assert one.num_kernels <= most
    # Values of colors are wider than keys, which NVIDIA does not fuse, nor attention in float32.
    num_fused = 2 if name == "sudoku-hrm" and precision != "fp32" else 0
    assert one.num_fused_attention == num_fused
