"""Times one segment on every engine of a bundle, beside a large matrix product.

Shapes: B puzzles of a batch, T tokens, R rounds, C contestants.
"""

import json
import math
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.command import SegmentOptions
from hrm_benchmarks.report import RATIO, Row, Step, speeds, take_turns, tell
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import INPUTS, shapes_of
from hrm_edge_runtime.engines.factory import choose, engine_for

SIDE = 512  # rows and columns of the product; 3 MB of float32 in all
PRODUCTS = ("MatMul", "Gemm", "Conv")
LEGEND = f"""\
ratio: how many times as fast as the first engine of the batch, in the same round; quartiles
of product: the segment's multiplications per second over those of a product of two {SIDE}x{SIDE}
            matrices in float32 by numpy, in the same rounds; only on the CPU"""
COLUMNS = {
    "batch": "{batch}",
    "engine": "{engine}",
    "ms a segment": "{step_ms:.2f}",
    "ratio": RATIO,
    "MFLOP": "{mflop:.1f}",
    "of product": "{share:.0%}",
}


def measure(bundle: Bundle, options: SegmentOptions) -> list[Row]:
    """Return a row for each engine (ENGINE[:PRECISION]) at each batch.

    Raises ValueError for engines that the bundle cannot run.
    """
    engines = options.engine or [f"cpu:{name}" for name in bundle.manifest.precisions]
    threads = options.threads
    kinds = [choose(bundle, engine).engine for engine in engines]
    if "unrolled" in kinds:
        raise ValueError(
            "an unrolled graph lacks a segment to time, because its first step runs the whole "
            "loop: name another engine."
        )
    flop = None
    if "cpu" in kinds:
        flop = flop_of(bundle)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of numpy in the child processes
    rows: list[Row] = []
    for batch in options.batch or (1, 8):
        tell(f"batch {batch}: {', '.join(engines)}")
        prepare = partial(prepared, bundle.path, batch=batch, num_threads=threads)
        contestants = [partial(prepare, engine) for engine in engines]
        seconds_RC = take_turns([*contestants, product], options)
        for engine, row in zip(engines, rows_of(seconds_RC, batch, flop), strict=True):
            rows.append({"engine": engine, "batch": batch, **row})
    return rows


def rows_of(seconds_RC: NDArray[np.float64], batch: int, flop: int | None) -> list[Row]:
    """Return the figures of each engine; the last contestant is the product."""
    segments_RC = seconds_RC[:, :-1]
    product_per_s_R = 2 * SIDE**3 / seconds_RC[:, -1]
    num_engines = segments_RC.shape[1]
    figures = speeds(segments_RC, [batch] * num_engines)
    rows: list[Row] = []
    for number, figure in enumerate(figures):
        row: dict[str, Any] = {**figure, "mflop": None, "share": None}
        if flop is not None:
            share_R = batch * flop / segments_RC[:, number] / product_per_s_R
            row["mflop"] = flop / 1e6
            row["share"] = float(np.median(share_R))
        rows.append(row)
    return rows


def prepared(path: Path, engine: str, *, batch: int, num_threads: int) -> tuple[None, Step]:
    """Return a step that runs one more segment of a full batch; runs in a child process."""
    bundle = Bundle.open(path)
    golden_tokens_BT = bundle.golden().tokens_BT
    tokens_BT = np.resize(golden_tokens_BT, (batch, bundle.manifest.seq_len))
    opened = engine_for(bundle, engine=engine, num_slots=batch, num_threads=num_threads)
    for slot, tokens_T in enumerate(tokens_BT):
        opened.load(slot, tokens_T, bundle.puzzle_table[0])
    return None, partial(opened.step, batch)


def product() -> tuple[None, Step]:
    """Return a step that multiplies two square matrices; runs in a child process."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, SIDE, SIDE)).astype(np.float32)
    return None, partial(np.matmul, left, right)


def flop_of(bundle: Bundle) -> int:
    """Count the floating-point operations of the products of a segment of one puzzle.

    ONNX Runtime reports the shapes of every node of a run, so this needs no other library.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/run"
        path = bundle.graph_path("fp32", device="cpu")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = shapes_of(INPUTS, bundle.manifest, num_rows=1)
        feed = {name: np.zeros(shape, INPUTS[name]) for name, shape in inputs.items()}
        session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    flop = 0
    for event in events:
        if event["cat"] == "Node" and event["args"]["op_name"] in PRODUCTS:
            flop += _flop_of_node(event["args"])
    return flop


def _flop_of_node(node: dict[str, Any]) -> int:
    inputs = node["input_type_shape"]
    terms = _shape_of(inputs[0])[-1:]
    if node["op_name"] == "Conv":
        terms = _shape_of(inputs[1])[1:]  # the kernel's inputs, rows, columns
    sums = _shape_of(node["output_type_shape"][0])
    return 2 * math.prod(terms) * math.prod(sums)


def _shape_of(value: dict[str, list[int]]) -> list[int]:
    """Return the shape of a tensor that ONNX Runtime describes as {type: shape}."""
    (shape,) = value.values()
    return shape
