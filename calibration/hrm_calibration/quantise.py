"""A float step graph becomes an INT8 one: Q/DQ around the linear products and nowhere else; and how scales are chosen.

Symmetric and signed, as TensorRT wants it (Developer Guide, "Explicit Quantization"): weights per output channel,
activations per tensor with a scale for each call site. Residual sums read the unquantised tensor. A "weight-only"
matrix is stored in INT8 too, but its inputs are not rounded. Shapes: I inputs and O outputs of a linear
layer, C clips tried, K bins, L levels.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

IN_FLOAT = frozenset({"logits_BTV", "halting/product", "embed/vectors"})
"""Products so small that INT8 saves nothing: they decide the answer and the halt, or let a NaN of a vector be seen."""
LIMITS = {7: 64, 8: 127}
"""The largest quantised weight by `weight_bits`: 8 for TensorRT, 7 for the form for CPUs.

x86 processors without VNNI add two products of ONNX Runtime's quickest kernel in 16 bits, which saturate: 255 (64 + 64)
still fits, 255 (127 + 127) does not (onnxruntime.ai, "Quantize ONNX models", on U8S8). Seven bits cost little, since
most of the error comes from activations.
"""
INT8, SCALE = "/int8", "/scale"
"""Endings of what replaces a quantised matrix, and of a call site's range."""
SIGNED_ZERO, UNSIGNED_ZERO = "zero_int8", "zero_uint8"
NUM_BINS = 2048
"""The largest value lies in the upper half, so it is resolved to a part in 1,024 or finer."""
SMALLEST_TOP = 2.0**-64
CHUNK = 1 << 20
"""Values binned at a time: temporary arrays stay a few megabytes at any sequence length."""
STEPS = 127
"""A clip is this many steps of the scale."""
LEVELS, ENTROPY_STRIDE = 128, 8
"""Levels of magnitude, as entropy calibration counts them."""
FLOOR = 1e-4
"""A share that a quantised distribution is taken to have where it has none, so that clipping costs a finite amount."""
CLIP_SHARES = np.geomspace(0.05, 1.0, 96)
"""Shares of the largest magnitude that the MSE method tries."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place where a linear layer is called: the node's name, the tensor it reads and the matrix it uses."""

    name: str
    tensor: str
    weight: str


def call_sites(graph: ModelProto) -> list[Site]:
    """Every product with a stored matrix but the heads, in the order they run; refuses a graph without any."""
    floats = (tensor for tensor in graph.graph.initializer if tensor.data_type == TensorProto.FLOAT)
    stored = {tensor.name for tensor in floats if len(tensor.dims) == 2}
    sites = [
        Site(name=node.name, tensor=node.input[0], weight=node.input[1])
        for node in graph.graph.node
        if node.op_type == "MatMul" and node.input[1] in stored and node.name not in IN_FLOAT
    ]
    if not sites:
        raise ValueError("the graph has no product with a stored float matrix; give a step graph in float32.")
    return sites


def quantise(
    graph: ModelProto, scales: Mapping[str, float], *, weight_only: Collection[str] = (), weight_bits: int = 8
) -> ModelProto:
    """The signed Q/DQ graph; `scales` by call site, `weight_only` names matrices whose inputs stay as they are.

    Each matrix is stored once in INT8, however many call sites use it. Refuses a call site without a scale, a matrix of
    `weight_only` that the graph does not use, and other `weight_bits` than 7 and 8.
    """
    if weight_bits not in LIMITS:
        raise ValueError(f"weights of {weight_bits} bits are not made; choose 7 or 8.")
    sites = call_sites(graph)
    weights = {site.weight for site in sites}
    unknown = sorted(set(weight_only) - weights)
    if unknown:
        raise ValueError(f"{unknown[0]} is no matrix of a linear layer; choose among {sorted(weights)}.")
    chosen = {site.name: site for site in sites if site.weight not in weight_only}
    missing = [name for name in chosen if not scales.get(name, 0) > 0]
    if missing:
        raise ValueError(f"call site {missing[0]} has no scale above 0; calibrate this very graph again.")
    tensors: list[TensorProto] = []
    for tensor in graph.graph.initializer:
        if tensor.name in weights:
            matrix_IO, scale_O = quantised_matrix(numpy_helper.to_array(tensor), LIMITS[weight_bits])
            tensors.append(numpy_helper.from_array(matrix_IO, tensor.name + INT8))
            tensors.append(numpy_helper.from_array(scale_O, tensor.name + SCALE))
        else:
            tensors.append(tensor)
    tensors += [numpy_helper.from_array(np.array(scales[name], np.float32), name + SCALE) for name in chosen]
    tensors.append(numpy_helper.from_array(np.array(0, np.int8), SIGNED_ZERO))
    return with_nodes(graph, _nodes(graph, chosen, weights), tensors)


def unsigned(graph: ModelProto, weight_only: Collection[str] = ()) -> ModelProto:
    """The same function with activations in 0..255: their zero point moves by 128, and no scale changes.

    For weights of seven bits. A weight-only matrix becomes float by Cast and Mul, which ONNX Runtime does once, as it
    loads: DequantizeLinear it would leave to every step.
    """
    tensors = [*graph.graph.initializer, numpy_helper.from_array(np.array(128, np.uint8), UNSIGNED_ZERO)]
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        weight = node.output[0]
        if weight in weight_only:
            matrix, scale = node.input
            nodes.append(helper.make_node("Cast", [matrix], [f"{weight}/cast"], f"{weight}/cast", to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Mul", [f"{weight}/cast", scale], [weight], f"{weight}/scaled"))
            continue
        ours = copy.deepcopy(node)
        ours.input[:] = [UNSIGNED_ZERO if name == SIGNED_ZERO else name for name in node.input]
        nodes.append(ours)
    return with_nodes(graph, nodes, tensors)


def quantised_matrix(weight_IO: NDArray[np.float32], limit: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The matrix in -`limit`..`limit` with the scale of each output channel."""
    largest_O = np.abs(weight_IO).max(axis=0)
    scale_O = np.where(largest_O > 0, largest_O / limit, 1).astype(np.float32)
    return np.rint(weight_IO / scale_O).clip(-limit, limit).astype(np.int8), scale_O


def _nodes(graph: ModelProto, chosen: Mapping[str, Site], weights: set[str]) -> Iterator[NodeProto]:
    """The graph's nodes in order, weights made float again first and each call site's input on the way to it."""
    for weight in sorted(weights):
        inputs = [weight + INT8, weight + SCALE]
        yield helper.make_node("DequantizeLinear", inputs, [weight], name=f"{weight}/dequantize", axis=1)
    for node in graph.graph.node:
        site = chosen.get(node.name)
        if site is None:
            yield node
            continue
        grid = [site.name + SCALE, SIGNED_ZERO]
        small, back = f"{site.name}/quantized", f"{site.name}/dequantized"
        yield helper.make_node("QuantizeLinear", [site.tensor, *grid], [small], name=f"{site.name}/quantize")
        yield helper.make_node("DequantizeLinear", [small, *grid], [back], name=f"{site.name}/dequantize")
        yield helper.make_node("MatMul", [back, site.weight], list(node.output), name=node.name)


def with_nodes(
    model: ModelProto,
    nodes: Iterable[NodeProto],
    tensors: Iterable[TensorProto],
    *,
    inputs: Iterable[ValueInfoProto] | None = None,
    outputs: Iterable[str] | None = None,
) -> ModelProto:
    """The model with other nodes and stored arrays, of which those that no node uses are left out, and other ends.

    ONNX Runtime infers the types of other outputs.
    """
    changed = copy.deepcopy(model)
    for part in ("node", "initializer", "value_info"):
        changed.graph.ClearField(part)
    changed.graph.node.extend(nodes)
    used = {name for node in changed.graph.node for name in node.input}
    changed.graph.initializer.extend(tensor for tensor in tensors if tensor.name in used)
    if inputs is not None:
        changed.graph.ClearField("input")
        changed.graph.input.extend(inputs)
    if outputs is not None:
        changed.graph.ClearField("output")
        changed.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
    return changed


def with_outputs(graph: ModelProto, tensors: Iterable[str]) -> ModelProto:
    """The graph with these tensors among its outputs."""
    shown = copy.deepcopy(graph)
    given = {value.name for value in graph.graph.output}
    shown.graph.output.extend(ValueInfoProto(name=name) for name in tensors if name not in given)
    return shown


@dataclass(kw_only=True, eq=False)
class Histogram:
    """Magnitudes in bounded memory: `counts` over `NUM_BINS` equal bins of [0, `top`), and the exact `largest`.

    The range is a power of two and doubles for a value beyond it: pairs of bins become one, so counts stay exact and
    the order of values changes nothing.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    top: float = 0.0
    largest: float = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """Upper edge of each bin."""
        return np.arange(1, NUM_BINS + 1, dtype=np.float64) * (self.top / NUM_BINS)

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every value by its magnitude; refuses values that are not finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            magnitudes = np.abs(flat[start : start + CHUNK])
            largest = float(magnitudes.max())
            if not np.isfinite(largest):
                raise ValueError("an activation is not finite, so it has no range; train or export the model again.")
            self.largest = max(self.largest, largest)
            end = max(float(2.0 ** np.frexp(largest)[1]), SMALLEST_TOP) if largest else 0.0
            self.top = self.top or end
            while self.top < end:
                pairs = self.counts.reshape(-1, 2).sum(axis=1)
                self.counts = np.concatenate([pairs, np.zeros(NUM_BINS // 2, np.int64)])
                self.top *= 2
            # zero lies in the first bin of any range, also of one that has no end yet
            bins = (magnitudes * np.float32(NUM_BINS / (self.top or 1.0))).astype(np.int32)  # exact: a power of two
            self.counts += np.bincount(bins, minlength=NUM_BINS)


def scale_of(histogram: Histogram, method: str) -> float:
    """The scale a method of `METHODS` chooses; 1 where nothing but zeros came by, since any scale holds them."""
    return METHODS[method](histogram) / STEPS if histogram.largest else 1.0


def percentile(share: float, histogram: Histogram) -> float:
    """The smallest bin edge with `share` of all magnitudes at or below it, at most the largest magnitude."""
    reached_K = np.cumsum(histogram.counts)
    index = int(np.searchsorted(reached_K, share * reached_K[-1]))
    return min(float(histogram.edges[min(index, NUM_BINS - 1)]), histogram.largest)


def entropy(histogram: Histogram) -> float:
    """The clip whose quantised distribution is nearest by Kullback-Leibler divergence (Migacz, GTC 2017)."""
    counts_K = histogram.counts.astype(np.float64)
    last = int(np.flatnonzero(counts_K)[-1]) + 1
    ends = [*range(LEVELS, last, ENTROPY_STRIDE), last]
    best = min(ends, key=lambda end: _divergence(counts_K, end))
    return min(float(histogram.edges[best - 1]), histogram.largest)


def mean_squared(histogram: Histogram) -> float:
    """The clip with the least squared error of rounding and clipping together."""
    centre_K = histogram.edges - histogram.top / NUM_BINS / 2
    seen_K = np.flatnonzero(histogram.counts)
    centre_K, counts_K = centre_K[seen_K], histogram.counts[seen_K].astype(np.float64)
    clip_C = CLIP_SHARES * histogram.largest
    scale_C1 = clip_C[:, None] / STEPS
    back_CK = np.minimum(np.rint(centre_K / scale_C1), STEPS) * scale_C1
    return float(clip_C[((back_CK - centre_K) ** 2 @ counts_K).argmin()])


METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "min-max": lambda histogram: histogram.largest,  # nothing is clipped
    "percentile-99.99": partial(percentile, 0.9999),
    "percentile-99.999": partial(percentile, 0.99999),
    "entropy": entropy,
    "mse": mean_squared,
}


def _divergence(counts_K: NDArray[np.float64], end: int) -> float:
    """KL divergence between the first `end` bins, the rest piled on the last, and the same in `LEVELS` levels."""
    kept_K = counts_K[:end]
    clipped_K = kept_K.copy()
    clipped_K[-1] += counts_K[end:].sum()
    level_K = np.arange(end) * LEVELS // end if end > LEVELS else np.arange(end)
    filled_K = kept_K > 0
    mass_L = np.bincount(level_K, weights=kept_K)
    bins_L = np.bincount(level_K, weights=filled_K)
    spread_K = np.where(filled_K, (mass_L / np.maximum(bins_L, 1))[level_K], 0.0)
    present_K = clipped_K > 0
    share_K, spread_K = clipped_K[present_K] / clipped_K.sum(), spread_K[present_K] / spread_K.sum()
    return float((share_K * np.log(share_K / np.maximum(spread_K, FLOOR))).sum())
