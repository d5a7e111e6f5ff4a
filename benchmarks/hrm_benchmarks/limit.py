"""Compare the speed of a segment's products with that of one large product.

Both run on ONNX Runtime with one thread, and they alternate.
Shapes: R rounds, C contestants (the product, then each batch), B batch.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

from hrm_benchmarks.report import Rounds, Row, Step, take_turns, tell
from hrm_benchmarks.segments import prepared
from hrm_edge_runtime.contract.bundle import Bundle

ENGINE = "cpu:fp32"
SIDE = 512  # rows and columns of the product; 3 MB of float32 in all
PRODUCTS = ("MatMul", "Gemm", "Conv")
COLUMNS = {
    "model": "{model}",
    "MFLOP a segment": "{mflop:.1f}",
    "product GFLOP/s": "{gflops:.1f}",
    "batch": "{batch}",
    "ms a segment": "{segment_ms:.3f}",
    "of the product's rate": "{share:.0%}",
}
LEGEND = f"""\
MFLOP: two for each multiplication in the matrix products and convolutions of one puzzle
product: {SIDE}x{SIDE}x{SIDE} in float32 on the same thread, in the same rounds; medians"""

Shape = tuple[int, ...]


def measure(bundle: Bundle, batches: Sequence[int], rounds: Rounds) -> list[Row]:
    """Return a row for each batch of one model; ratios are taken inside a round."""
    name = bundle.manifest.name
    tell(f"{name}: a product, and batches {', '.join(map(str, batches))}")
    prepare = partial(prepared, bundle.path, ENGINE, num_threads=1, checkpoint=None)
    contestants = [_product, *[partial(prepare, batch=batch) for batch in batches]]
    seconds_RC = take_turns(contestants, rounds)
    flop = flop_of(bundle.graph_path("fp32", device="cpu"))
    product_R = 2 * SIDE**3 / seconds_RC[:, 0]
    rows: list[Row] = []
    for number, batch in enumerate(batches, start=1):
        rate_R = flop * batch / seconds_RC[:, number]
        row = {"model": name, "batch": batch, "mflop": flop / 1e6}
        row["gflops"] = float(np.median(product_R)) / 1e9
        row["segment_ms"] = 1e3 * float(np.median(seconds_RC[:, number]))
        row["share"] = float(np.median(rate_R / product_R))
        rows.append(row)
    return rows


def flop_of(path: Path) -> int:
    """Count the floating-point operations of the products of a step graph for one puzzle.

    Raises ValueError if the graph does not determine the sizes of a product.
    """
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1  # the batch
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes: dict[str, Shape] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        sizes = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(size.dim_value for size in sizes)  # 0 if unknown
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    products = [node for node in graph.node if node.op_type in PRODUCTS]
    return sum(_flop_of_node(node, shapes) for node in products)


def _flop_of_node(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    terms = shapes.get(node.input[0], ())[-1:]
    if node.op_type == "Conv":
        terms = shapes.get(node.input[1], ())[1:]  # the kernel's inputs, rows, columns
    num_terms = math.prod(terms)
    num_sums = math.prod(shapes.get(node.output[0], (0,)))
    if not terms or not num_terms * num_sums:
        raise ValueError(f"the sizes of {node.name!r} are unknown: export the bundle again.")
    return 2 * num_terms * num_sums


def _product() -> tuple[None, Step]:
    """Return a step that multiplies two square matrices; runs in a child process."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, SIDE, SIDE)).astype(np.float32)
    node = helper.make_node("MatMul", ["left", "right"], ["out"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE])
        for name in ("left", "out")
    ]
    weights = [numpy_helper.from_array(right, "right")]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        onnx.save(model, path)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return None, partial(session.run, None, {"left": left})
