"""NVIDIA's own parser and strongly typed builder without a GPU: TensorRT-RTX builds ahead of time.

    python -m pip install --no-deps --target WHEELS REQUIREMENTS
    PYTHONPATH=WHEELS python -m pytest -m rtx
    PYTHONPATH=WHEELS python tests/support/rtx_tools.py [BUNDLE...]

The last command prints the tables in benchmarks/results, or the first table of these bundles. No
plan runs on a Jetson: RTX compiles for GeForce cards, and the nearest relative of Orin that it
knows is the Ampere card of compute capability 8.6.
"""

import contextlib
import ctypes
import importlib.util
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from builder_log import Kernel, kernels_in, most_kernels

from hrm_calibration.half import float32_nodes, half_graph, record_ranges
from hrm_calibration.quantize import call_sites, quantize
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_edge_runtime.engines.trt.api import BuildSettings, ShapeRange, plan_from_onnx
from hrm_edge_runtime.engines.trt.profiles import Profile
from hrm_export.segment import segment_graph
from hrm_export.unrolled import unrolled_graph
from hrm_host.progress import Stages
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions

REQUIREMENTS = (
    "tensorrt-rtx-cu13-bindings==1.7.1.116",
    "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0",
)
LIBRARIES = ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*")
LARGE = (Profile.fixed(1), Profile.fixed(8))
SMALL = (Profile(min_rows=1, best_rows=8, max_rows=16),)
NUM_UNROLLED = 2
TRM: dict[str, Any] = {
    "arch": "trm",
    "high_cycles": 3,
    "low_cycles": 6,
    "high_layers": 2,
    "low_layers": 2,
    "puzzle_positions": 16,
    "halt_rule": "q_halt",
}
MIXERS: dict[str, Any] = {"blocks": "mixer", "positions": "none"}
TRMS: dict[str, dict[str, Any]] = {"trm": {}, "trm of mixers": MIXERS}
FUSED_ATTENTION = re.compile(rb"_gemm_mha_v2_0x[0-9a-f]+")
TARGET = re.compile(rb"sm_?(\d{2,3})\b")
NAMES_PER_ATTENTION = 3  # times that the plan spells the name of a fused attention
WEIGHTS = re.compile(r"Total Weights Memory: (\d+)")
SCRATCH = re.compile(r"Max Scratch Memory: (\d+)")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One plan; sizes and kernels of all profiles come from the builder's log.

    `targets` are the architectures whose code the plan holds. `complaints` are the warnings and
    errors of the log.
    """

    form: str
    graph_bytes: int
    plan_bytes: int
    weights_bytes: int
    scratch_bytes: int
    num_fused_attention: int
    kernels: tuple[Kernel, ...]
    targets: frozenset[str]
    complaints: tuple[str, ...]
    seconds: float

    @property
    def num_kernels(self) -> int:
        return most_kernels(self.kernels)

    @property
    def num_streams(self) -> int:
        return len({kernel.stream for kernel in self.kernels})


def is_installed() -> bool:
    modules = ("tensorrt_rtx_bindings", "onnxruntime_ep_nv_tensorrt_rtx")
    return all(importlib.util.find_spec(module) for module in modules)


def load_rtx() -> Any:
    """Open the libraries of the other wheel and return the bindings, which replace `tensorrt`."""
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for pattern in LIBRARIES:
        library = min(folder.glob(pattern))
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    import tensorrt_rtx_bindings

    sys.modules["tensorrt"] = tensorrt_rtx_bindings
    return tensorrt_rtx_bindings


def full_size_graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the forms of random models at full size, as hrm-export makes them.

    These are a 27 M model for 9x9 Sudokus, one for 30x30 mazes, and TRMs.
    """
    torch.manual_seed(0)
    config = _config("sudoku")
    step = _step_of(config)
    ranges = _ranges(step, config)
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
    maze = _step_of(_config("maze"))
    yield "fp16, 900 cells", half_graph(maze, kept)
    for name, changes in TRMS.items():
        config = _config("sudoku", **TRM, **changes)
        step = _step_of(config)
        ranges = _ranges(step, config)
        signed = quantize(step, _scales(step, ranges))
        yield f"{name}, fp16", _half(step, ranges)
        yield f"{name}, int8, rest fp16", _half(signed, ranges)


def _step_of(config: HRMConfig) -> onnx.ModelProto:
    return segment_graph(model_of(config).eval())


def _half(graph: onnx.ModelProto, ranges: Mapping[str, float]) -> onnx.ModelProto:
    return half_graph(graph, float32_nodes(graph, ranges))


def _config(puzzle_name: str, **changes: Any) -> HRMConfig:
    puzzle = registry.get(puzzle_name)
    return HRMConfig(vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, **changes)


def build(
    trt: Any, form: str, graph: onnx.ModelProto, *, profiles: tuple[Profile, ...] = LARGE
) -> Figures:
    """Parse and build a graph with the product's own builder, for the nearest known target."""
    with tempfile.TemporaryDirectory() as folder, _builder_log() as log:
        file = Path(folder) / "graph.onnx"
        onnx.save(graph, file)
        graph_bytes = file.stat().st_size
        ranges = [_ranges_of(graph, profile) for profile in profiles]
        began_s = time.process_time()
        plan = plan_from_onnx(
            file,
            ranges,
            settings=BuildSettings(),
            stages=Stages(),
            timing_cache=None,  # RTX would look for a GPU
            adjust=lambda config: _aim(trt, config),
        )
        seconds = time.process_time() - began_s
    targets = [target.decode() for target in TARGET.findall(plan)]
    return Figures(
        form=form,
        graph_bytes=graph_bytes,
        plan_bytes=len(plan),
        weights_bytes=_largest(WEIGHTS, log.messages),
        scratch_bytes=_largest(SCRATCH, log.messages),
        num_fused_attention=_num_fused_attention(plan, profiles),
        kernels=tuple(kernels_in("\n".join(log.messages))),
        targets=frozenset(targets),
        complaints=tuple(log.complaints),
        seconds=seconds,
    )


class _Log(logging.Handler):
    """Keeps warnings and errors as `complaints`, and the rest as `messages`."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []
        self.complaints: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.complaints.append(record.getMessage())
        else:
            self.messages.append(record.getMessage())


@contextlib.contextmanager
def _builder_log() -> Iterator[_Log]:
    handler = _Log()
    log = logging.getLogger("hrm_edge_runtime.tensorrt")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


def _num_fused_attention(plan: bytes, profiles: Sequence[Profile]) -> int:
    return len(FUSED_ATTENTION.findall(plan)) // (NAMES_PER_ATTENTION * len(profiles))


def _aim(trt: Any, config: Any) -> None:
    """Target the nearest relative of an Orin.

    Without a number of targets the call returns false and takes none.
    """
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    assert config.get_compute_capability(0) == trt.ComputeCapability.SM86


def _largest(figure: re.Pattern[str], messages: list[str]) -> int:
    return max(int(value) for value in figure.findall("\n".join(messages)))


def _ranges_of(graph: onnx.ModelProto, profile: Profile) -> Mapping[str, ShapeRange]:
    ranges: dict[str, ShapeRange] = {}
    for value in graph.graph.input:
        _, *row = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ranges[value.name] = ShapeRange(
            (profile.min_rows, *row), (profile.best_rows, *row), (profile.max_rows, *row)
        )
    return ranges


def _ranges(step: onnx.ModelProto, config: HRMConfig) -> dict[str, float]:
    puzzle = registry.get("sudoku")
    rng = np.random.default_rng(0)
    tokens_NT = rng.integers(1, config.vocab_size, (2, config.seq_len), dtype=np.int32)
    ids_N = np.zeros(2, np.int32)
    questions = Questions(
        tokens_NT=tokens_NT, labels_NT=tokens_NT, puzzle_ids_N=ids_N, source="here"
    )
    table = np.zeros((1, config.puzzle_vector_size), np.float32)
    policy = HaltingPolicy(kind="fixed", max_segments=1)
    served = ServedGraph(graph=step, puzzle=puzzle, puzzle_table=table, policy=policy)
    return record_ranges(served, questions)


def _scales(step: onnx.ModelProto, ranges: Mapping[str, float]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for site in call_sites(step):
        largest = ranges.get(site.tensor, 127.0)
        scales[site.name] = largest / 127
    return scales


def print_bundles(trt: Any, paths: Sequence[Path]) -> None:
    """Print a row for each form of each bundle; bytes moved are for eight puzzles."""
    print("| model | form | kernels | streams | moved, 8 puzzles | scratch, 16 | plan | CPU time |")
    print("|---|---|---|---|---|---|---|---|")
    for path in paths:
        bundle = Bundle.open(path)
        name = bundle.manifest.name
        for precision in bundle.manifest.precisions:
            graph = onnx.load(bundle.graph_path(precision))
            one = build(trt, precision, graph, profiles=SMALL)
            eight = build(trt, precision, graph, profiles=(Profile.fixed(8),))
            moved_bytes = sum(kernel.moved_bytes for kernel in eight.kernels)
            sizes = (moved_bytes, one.scratch_bytes, one.plan_bytes)
            cells = " | ".join(f"{size / 1e6:.1f} MB" for size in sizes)
            counts = f"{one.num_kernels} | {one.num_streams}"
            line = f"| {name} | {precision} | {counts} | {cells} | {one.seconds:.1f} s |"
            print(line, flush=True)


def main() -> None:
    trt = load_rtx()
    named = [Path(argument) for argument in sys.argv[1:]]
    print_bundles(trt, named or list(shipped_bundles().values()))
    if named:
        return
    print()
    print("| form | graph | plan | weights | scratch, batch <= 8 | fused attention | CPU time |")
    print("|---|---|---|---|---|---|---|")
    for form, graph in full_size_graphs():
        one = build(trt, form, graph)
        sizes = (one.graph_bytes, one.plan_bytes, one.weights_bytes, one.scratch_bytes)
        cells = " | ".join(f"{size / 1e6:.1f} MB" for size in sizes)
        line = f"| {one.form} | {cells} | {one.num_fused_attention} | {one.seconds:.0f} s |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
