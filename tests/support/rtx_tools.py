"""NVIDIA's own parser and strongly typed builder without a GPU: TensorRT-RTX, whose ahead-of-time build needs none.

    python -m pip install --no-deps --target WHEELS REQUIREMENTS
    python -m pip install --no-deps --target WHEELS/stubs STUBS
    PYTHONPATH=WHEELS python -m pytest -m rtx
    PYTHONPATH=WHEELS python tests/support/rtx_tools.py

The last prints the table in benchmarks/results. No plan fits a Jetson: RTX compiles for GeForce cards, and the nearest
relative of Orin it knows is the Ampere card of compute capability 8.6.
"""

import ctypes
import importlib.util
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from hrm_calibration.quantise import call_sites, quantise
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Shape
from hrm_edge_runtime.engines.trt.api import BuildSettings, plan_from_onnx
from hrm_export.half import float32_nodes, half_graph, record_ranges
from hrm_export.segment import segment_graph
from hrm_export.unrolled import unrolled_graph
from hrm_host.progress import Stages
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions

REQUIREMENTS = ("tensorrt-rtx-cu13-bindings==1.7.1.116", "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0")
STUBS = "tensorrt-stubs==10.13.0.35.1"
LIBRARIES = ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*")
BUCKETS = (1, 8)
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
TRMS: dict[str, dict[str, Any]] = {"trm": {}, "trm of mixers": {"blocks": "mixer", "positions": "none"}}
FUSED_ATTENTION = re.compile(rb"_gemm_mha_v2_0x[0-9a-f]+")
KERNEL = re.compile(rb"\w+_0x[0-9a-f]{32}")
TARGET = re.compile(rb"sm_?(\d{2,3})\b")
NAMES_PER_KERNEL = 3  # the plan spells a kernel's name so often
TOLD = {"weights": re.compile(r"Total Weights Memory: (\d+)"), "scratch": re.compile(r"Max Scratch Memory: (\d+)")}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One plan; sizes as the builder's log tells them, kernels counted for one profile.

    `targets` are the architectures whose code the plan holds, `complaints` the log's warnings and errors.
    """

    form: str
    graph_bytes: int
    plan_bytes: int
    weights_bytes: int
    scratch_bytes: int
    num_fused_attention: int
    num_kernels: int
    targets: frozenset[str]
    complaints: tuple[str, ...]
    seconds: float


def is_installed() -> bool:
    return all(map(importlib.util.find_spec, ("tensorrt_rtx_bindings", "onnxruntime_ep_nv_tensorrt_rtx")))


def stubs_folder() -> Path | None:
    """Where `tensorrt-stubs` lies, beside the wheels and out of Python's sight: it would pass for TensorRT itself."""
    spec = importlib.util.find_spec("tensorrt_rtx_bindings")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parents[1] / "stubs"
    return folder if folder is not None and folder.is_dir() else None


def load_rtx() -> Any:
    """The bindings, with the libraries of the other wheel opened for them first; they stand in for `tensorrt`."""
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    assert spec is not None
    assert spec.origin is not None
    for pattern in LIBRARIES:
        ctypes.CDLL(str(min(Path(spec.origin).parent.glob(pattern))), mode=ctypes.RTLD_GLOBAL)
    import tensorrt_rtx_bindings

    sys.modules["tensorrt"] = tensorrt_rtx_bindings
    return tensorrt_rtx_bindings


def full_size_graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every form of a random 27 M model for 9x9 Sudokus, as hrm-export makes them, one for 30x30 mazes, and TRMs."""
    torch.manual_seed(0)
    config = _config("sudoku")
    step = segment_graph(HRM(config).eval())
    ranges = _ranges(step, config)
    scales = _scales(step, ranges)
    signed = quantise(step, scales)
    lighter = quantise(step, scales, weight_only=[site.weight for site in call_sites(step) if "down" in site.weight])
    kept = float32_nodes(step, ranges)
    half, half_int8 = half_graph(step, kept), half_graph(signed, float32_nodes(signed, ranges))
    yield "fp32", step
    yield "fp16", half
    yield "int8, rest fp16", half_int8
    yield "int8, rest fp32", signed
    yield "int8, down weight-only, rest fp16", half_graph(lighter, float32_nodes(lighter, ranges))
    policy = HaltingPolicy(kind="learned", max_segments=NUM_UNROLLED)
    yield f"fp16, unrolled {NUM_UNROLLED} times", unrolled_graph(half, policy, NUM_UNROLLED)
    yield f"int8, unrolled {NUM_UNROLLED} times", unrolled_graph(half_int8, policy, NUM_UNROLLED)
    yield "fp16, 900 cells", half_graph(segment_graph(HRM(_config("maze")).eval()), kept)
    for name, changes in TRMS.items():
        config = _config("sudoku", **TRM, **changes)
        step = segment_graph(HRM(config).eval())
        ranges = _ranges(step, config)
        signed = quantise(step, _scales(step, ranges))
        yield f"{name}, fp16", half_graph(step, float32_nodes(step, ranges))
        yield f"{name}, int8, rest fp16", half_graph(signed, float32_nodes(signed, ranges))


def _config(puzzle_name: str, **changes: Any) -> HRMConfig:
    puzzle = registry.get(puzzle_name)
    return HRMConfig(vocab_size=puzzle.vocab_size, seq_len=puzzle.seq_len, **changes)


def build(trt: Any, form: str, graph: onnx.ModelProto) -> Figures:
    """Parse and build with the product's own builder, for the nearest target there is."""
    heard: list[str] = []
    complaints: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda one: (complaints if one.levelno >= logging.WARNING else heard).append(one.getMessage())
    log = logging.getLogger("hrm_edge_runtime.tensorrt")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.onnx"
        onnx.save(graph, file)
        began = time.process_time()
        try:
            plan = plan_from_onnx(
                file,
                [_shapes(graph, bucket) for bucket in BUCKETS],
                settings=BuildSettings(),
                stages=Stages(),
                timing_cache=None,  # RTX would look for a GPU
                adjust=lambda config: _aim(trt, config),
            )
        finally:
            log.removeHandler(handler)
        return Figures(
            form=form,
            graph_bytes=file.stat().st_size,
            plan_bytes=len(plan),
            weights_bytes=_told(heard, "weights"),
            scratch_bytes=_told(heard, "scratch"),
            num_fused_attention=len(FUSED_ATTENTION.findall(plan)) // (NAMES_PER_KERNEL * len(BUCKETS)),
            num_kernels=len(KERNEL.findall(plan)) // (NAMES_PER_KERNEL * len(BUCKETS)),
            targets=frozenset(found.decode() for found in TARGET.findall(plan)),
            complaints=tuple(complaints),
            seconds=time.process_time() - began,
        )


def _aim(trt: Any, config: Any) -> None:
    """At the nearest relative of an Orin; without a number of targets none is taken, which the call only returns."""
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    assert config.get_compute_capability(0) == trt.ComputeCapability.SM86


def _told(heard: list[str], what: str) -> int:
    """The largest of all profiles."""
    return max(int(match[1]) for text in heard if (match := TOLD[what].search(text)))


def _shapes(graph: onnx.ModelProto, num_rows: int) -> Mapping[str, Shape]:
    sizes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in graph.graph.input}
    return {name: (num_rows, *shape[1:]) for name, shape in sizes.items()}


def _ranges(step: onnx.ModelProto, config: HRMConfig) -> dict[str, float]:
    puzzle = registry.get("sudoku")
    tokens_NT = np.random.default_rng(0).integers(1, config.vocab_size, (2, config.seq_len), dtype=np.int32)
    questions = Questions(tokens_NT=tokens_NT, labels_NT=tokens_NT, puzzle_ids_N=np.zeros(2, np.int32), source="here")
    table = np.zeros((1, config.puzzle_vector_size), np.float32)
    policy = HaltingPolicy(kind="fixed", max_segments=1)
    return record_ranges(ServedGraph(graph=step, puzzle=puzzle, puzzle_table=table, policy=policy), questions)


def _scales(step: onnx.ModelProto, ranges: Mapping[str, float]) -> dict[str, float]:
    return {site.name: ranges[site.tensor] / 127 if site.tensor in ranges else 1.0 for site in call_sites(step)}


def main() -> None:
    trt = load_rtx()
    print("| form | graph | plan | weights | scratch, batch <= 8 | fused attention | CPU time |")
    print("|---|---|---|---|---|---|---|")
    for form, graph in full_size_graphs():
        one = build(trt, form, graph)
        sizes = (one.graph_bytes, one.plan_bytes, one.weights_bytes, one.scratch_bytes)
        told = " | ".join(f"{size / 1e6:.1f} MB" for size in sizes)
        print(f"| {one.form} | {told} | {one.num_fused_attention} | {one.seconds:.0f} s |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
