"""Operations that the blocks of the step graph share: products, sums, normalization, attention.

Shapes: B batch, H heads, N positions, K head width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_export.onnx_graph import GraphWriter
from hrm_model.config import HRMConfig

Arrays = dict[str, NDArray[np.float32]]


@dataclass(kw_only=True, eq=False)
class BlockWriter:
    """Writes nodes of one model. `weights` have their names in the checkpoint."""

    config: HRMConfig
    graph: GraphWriter
    weights: Arrays
    tables: Arrays

    def weight(self, name: str) -> str:
        return self.graph.tensor(name, self.weights[name])

    def table(self, name: str) -> str:
        return self.graph.tensor(name, self.tables[name])

    def linear(self, name: str, module: str, x: str) -> str:
        """Write the product with a matrix that is stored [in, out]."""
        weight = f"{module}.weight"
        matrix = self.graph.tensor(weight, self.weights[weight].T)
        return self.graph.node(name, "MatMul", x, matrix)

    def products(self, scope: str, module: str) -> Callable[[str, str, str], str]:
        """`linear`, with names that start with the scope and weights of the module."""

        def linear(name: str, weights: str, x: str) -> str:
            return self.linear(f"{scope}/{name}", f"{module}.{weights}", x)

        return linear

    def biased(self, name: str, module: str, x: str) -> str:
        """Product and bias of a two-dimensional input: ONNX Runtime makes one Gemm of both."""
        weighed = self.linear(f"{name}_weighed", f"{module}_proj", x)
        bias = self.weight(f"{module}_bias")
        return self.graph.node(f"{name}_biased", "Add", weighed, bias)

    def convolution(self, name: str, module: str, x: str, size: int, *bias: str) -> str:
        """Write a convolution of `size` x `size` cells with a kernel [out, in, size, size]."""
        weight = f"{module}.weight"
        near_OI = self.weights[weight]
        cells_OrcI = near_OI.reshape(len(near_OI), size, size, -1)
        kernel = self.graph.tensor(weight, cells_OrcI.transpose(0, 3, 1, 2))
        edge = size // 2
        shape = {"kernel_shape": (size, size), "pads": (edge,) * 4}
        return self.graph.node(name, "Conv", x, kernel, *bias, **shape)

    def shaped(self, name: str, x: str, *sizes: int) -> str:
        return self.graph.node(name, "Reshape", x, self.graph.ints(*sizes))

    def total(self, name: str, x: str, axis: int) -> str:
        return self.graph.node(name, "ReduceSum", x, self.graph.ints(axis), keepdims=1)

    def sum(self, name: str, *values: str) -> str:
        total = values[0]
        for place, value in enumerate(values[1:]):
            total = self.graph.node(f"{name}_{place}", "Add", total, value)
        return total

    def inside(self, name: str, state: str) -> str:
        """Convert the state [B, N, D] to the layout that the blocks of this family use."""
        del name
        return state

    def outside(self, name: str, state: str) -> str:
        """The inverse of `inside`."""
        del name
        return state

    def residual(self, scope: str, x: str, change: str, axis: int = -1) -> str:
        """rms(x + change), in primitive operators: TensorRT 10.3 lacks RMSNormalization."""
        graph = self.graph
        node = graph.within(scope)
        total = node("residual", "Add", x, change)
        square = node("square", "Pow", total, graph.number(2.0))
        mean = node("mean", "ReduceMean", square, graph.ints(axis), keepdims=1)
        epsilon = graph.number(self.config.rms_norm_eps)
        steady = node("steady", "Add", mean, epsilon)
        rms = node("rms", "Sqrt", steady)
        return node("norm", "Div", total, rms)

    def attention_shares(self, scope: str, q: str, k: str, head_size: int) -> str:
        """How much each query takes of each key [B, H, N, N].

        A MatMul with the values follows. TensorRT fuses both, with the scale on the queries.
        """
        graph = self.graph
        node = graph.within(scope)
        scale = graph.number(1 / math.sqrt(head_size))
        q = node("q_scaled", "Mul", q, scale)
        k = node("k_turned", "Transpose", k, perm=(0, 1, 3, 2))
        scores = node("scores", "MatMul", q, k)
        return node("shares", "Softmax", scores, axis=-1)

    def rotated(self, scope: str, x: str) -> str:
        """x cos + (-second, first) sin, with the sign folded into the table of sines."""
        graph = self.graph
        node = graph.within(scope)
        cos = self.table("rotary_cos")
        sin = self.table("rotary_sin")
        half = self.tables["rotary_cos"].shape[1] // 2
        first, second = graph.split(f"{scope}/halves", x, (half, half), axis=3)
        turned = node("halves_swapped", "Concat", second, first, axis=3)
        straight = node("rotary_cos", "Mul", x, cos)
        crossed = node("rotary_sin", "Mul", turned, sin)
        return node("rotated", "Add", straight, crossed)


class TransformerBlocks(BlockWriter):
    """Blocks of attention or of a mixer over positions, each followed by SwiGLU."""

    def block(self, scope: str, module: str, x: str) -> str:
        if self.config.blocks == "mixer":
            x = self.mixed(f"{scope}/mixer", f"{module}.mlp_t", x)
        else:
            change = self.attention(f"{scope}/attention", f"{module}.self_attn", x)
            x = self.residual(f"{scope}/attention", x, change)
        change = self.swiglu(f"{scope}/mlp", f"{module}.mlp", x)
        return self.residual(f"{scope}/mlp", x, change)

    def attention(self, scope: str, module: str, x: str) -> str:
        node = self.graph.within(scope)
        linear = self.products(scope, module)
        config = self.config
        q, k, v = self.queries_keys_values(scope, module, x)
        shares = self.attention_shares(scope, q, k, config.head_size)
        mixed = node("mixed", "MatMul", shares, v)
        mixed = node("mixed_back", "Transpose", mixed, perm=(0, 2, 1, 3))
        sizes = (config.num_positions, config.hidden_size)
        mixed = self.shaped(f"{scope}/mixed_flat", mixed, 0, *sizes)
        return linear("o", "o_proj", mixed)

    def queries_keys_values(self, scope: str, module: str, x: str) -> list[str]:
        """Queries, keys and values, each [B, H, N, K]. Rotary queries and keys are rotated
        together."""
        graph = self.graph
        node = graph.within(scope)
        linear = self.products(scope, module)
        config = self.config
        heads = config.num_heads
        sizes = (config.num_positions, 3 * heads, config.head_size)
        qkv = linear("qkv", "qkv_proj", x)
        qkv = self.shaped(f"{scope}/heads", qkv, 0, *sizes)
        qkv = node("heads_first", "Transpose", qkv, perm=(0, 2, 1, 3))
        if config.positions != "rope":
            return graph.split(f"{scope}/q_k_v", qkv, (heads, heads, heads), axis=1)
        qk, v = graph.split(f"{scope}/qk_v", qkv, (2 * heads, heads), axis=1)
        qk = self.rotated(scope, qk)
        q, k = graph.split(f"{scope}/q_k", qk, (heads, heads), axis=1)
        return [q, k, v]

    def mixed(self, scope: str, module: str, x: str) -> str:
        """`MixerBlock.forward` over the positions: to channels first, [B, D, N], and back."""
        node = self.graph.within(scope)
        turned = node("channels_first", "Transpose", x, perm=(0, 2, 1))
        change = self.swiglu(scope, module, turned)
        turned = self.residual(scope, turned, change)
        return node("positions_first", "Transpose", turned, perm=(0, 2, 1))

    def swiglu(self, scope: str, module: str, x: str) -> str:
        graph = self.graph
        node = graph.within(scope)
        linear = self.products(scope, module)
        width = self.weights[f"{module}.down_proj.weight"].shape[1]
        gate_up = linear("gate_up", "gate_up_proj", x)
        gate, up = graph.split(f"{scope}/gate_and_up", gate_up, (width, width), axis=2)
        sigmoid = node("sigmoid", "Sigmoid", gate)
        silu = node("silu", "Mul", gate, sigmoid)
        gated = node("gated", "Mul", silu, up)
        return linear("down", "down_proj", gated)
