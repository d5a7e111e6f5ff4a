"""The step graph: one segment as ONNX, from carry to carry.

Read `_Segment.think` beside `HRM.think`.

Written node by node from the weights: tracing the PyTorch module takes minutes for the published
size and leaves weights behind a Transpose. Matrices are stored [in, out], as MatMul uses them,
and kernels [out, in, rows, columns], under their names in the checkpoint.
Shapes: B batch, T tokens, N positions (prefix and tokens), D hidden, K head width,
E puzzle-vector width, V vocabulary.
"""

import math
from collections.abc import Iterable

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from hrm_calibration.graph_rules import check_graph
from hrm_edge_runtime.engines import engine
from hrm_export.block_writer import Arrays, BlockWriter, TransformerBlocks
from hrm_export.onnx_graph import GraphWriter
from hrm_export.relational_blocks import RelationalBlocks
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_model.layers import rotary_table

UNUSED = ("puzzle_table", "hint_head.weight")
"""The table is an input, hints are for training."""


def segment_graph(model: HRM) -> ModelProto:
    """The step graph in float32 with the batch axis "B" open; the same model gives the same bytes.

    Inputs tokens_BT, puzzle_vector_BE, fresh_B, z_high_BND, z_low_BND; outputs z_high_BND_next,
    z_low_BND_next, answer_BT, halt_margin_B, q_halt_B, logits_BTV. A fresh row starts from the
    initial state.
    """
    segment = _Segment(
        config=model.config,
        graph=GraphWriter(),
        weights=weights_of(model),
        tables=tables_of(model.config),
    )
    segment.think()
    carries = [f"{name}_next" for name in engine.CARRIES]
    inputs = _values(engine.INPUTS, model.config)
    outputs = _values((*carries, *engine.ANSWERS, engine.LOGITS), model.config)
    graph = segment.graph.model("hrm_segment", inputs, outputs)
    check_graph(graph)
    return graph


def weights_of(model: HRM) -> Arrays:
    """The weights of the graph; those that symbols share are written out for each symbol."""
    width = model.config.hidden_size
    tensors = model.state_dict()
    tensors["embed_tokens"] = model.token_table()
    tensors["lm_head.weight"] = model.answer_matrix()
    for name in ("high_init", "low_init"):
        start = tensors[name]
        tensors[name] = start.tile(width // start.shape[-1])
    weights: Arrays = {}
    for name, tensor in tensors.items():
        if name not in UNUSED:
            weights[name] = tensor.detach().float().cpu().numpy()
    return weights


def tables_of(config: HRMConfig) -> Arrays:
    """Constant arrays that follow from the configuration."""
    tables: Arrays = {}
    if config.is_rotary:
        # [N, K]; the sines of the first half are negative, because `rotated` only swaps halves
        cos, sin = (table.numpy() for table in rotary_table(config))
        signs = np.array([-1, 1], np.float32)
        sign_K = np.repeat(signs, cos.shape[1] // 2)
        tables["rotary_cos"] = cos
        tables["rotary_sin"] = sin * sign_K
    if config.has_colors:
        tables["every_color"] = np.ones((1, config.num_symbols), np.float32)
    return tables


class _Segment(BlockWriter):
    def think(self) -> None:
        config = self.config
        x = self.embed()
        high = self.start("z_high_BND", "high_init")
        low = self.start("z_low_BND", "low_init")
        if config.arch == "transformer":
            # every block once; the carry passes through unchanged
            x = self.level("low", "low_level", config.low_layers, x)
            x = self.level("high", "high_level", config.high_layers, x)
            self.answer(x)
        else:
            high, low = self.recur(high, low, x)
            self.answer(high)
        self.graph.publish(high, "z_high_BND_next")
        self.graph.publish(low, "z_low_BND_next")

    def recur(self, high: str, low: str, x: str) -> tuple[str, str]:
        """All cycles of one segment."""
        graph = self.graph
        config = self.config
        blocks = self.blocks()
        x = blocks.inside("x", x)
        high = blocks.inside("high", high)
        low = blocks.inside("low", low)
        high_level = "low_level" if config.arch == "trm" else "high_level"
        for step in range(config.high_cycles * config.low_cycles):
            injection = graph.node(f"low_{step}/injection", "Add", high, x)
            low = graph.node(f"low_{step}/state", "Add", low, injection)
            low = self.level(f"low_{step}", "low_level", config.low_layers, low)
            if (step + 1) % config.low_cycles == 0:
                high = graph.node(f"high_{step}/state", "Add", high, low)
                high = self.level(f"high_{step}", high_level, config.high_layers, high)
        return blocks.outside("high", high), blocks.outside("low", low)

    def start(self, carry: str, initial: str) -> str:
        """The initial state if a row is fresh; a select, so garbage in the carry has no effect."""
        graph = self.graph
        fresh_B11 = graph.node(f"{initial}/fresh", "Unsqueeze", "fresh_B", graph.ints(1, 2))
        return graph.node(f"{initial}/start", "Where", fresh_B11, self.weight(initial), carry)

    def embed(self) -> str:
        graph = self.graph
        config = self.config
        x = graph.node("embed/tokens", "Gather", self.weight("embed_tokens"), "tokens_BT")
        if config.prefix_len:
            x = self.behind_prefix(x)
        elif config.puzzle_vector_size:
            x = self.with_vectors(x)
        variance = 1.0
        if config.positions == "learned":
            x = graph.node("embed/positioned", "Add", x, self.weight("embed_positions"))
            variance = 0.5
        scale = math.sqrt(config.num_channels * variance)
        return graph.node("embed/scaled", "Mul", x, graph.number(scale))

    def behind_prefix(self, x: str) -> str:
        """The puzzle vector as positions before the tokens, padded to whole positions."""
        graph = self.graph
        config = self.config
        vector = "puzzle_vector_BE"
        padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
        if padding:
            vector = graph.node("embed/padded", "Pad", vector, graph.ints(0, 0, 0, padding))
        prefix = self.shaped("embed/prefix", vector, 0, config.prefix_len, config.hidden_size)
        return graph.node("embed/input", "Concat", prefix, x, axis=1)

    def with_vectors(self, x: str) -> str:
        """The tokens with a part of the puzzle vector added to each symbol's channels."""
        config = self.config
        part = config.puzzle_vector_size // config.num_symbols
        parts = self.shaped("embed/parts", "puzzle_vector_BE", 0, config.num_symbols, part)
        vectors = self.linear("embed/vectors", "vector_proj", parts)
        vectors = self.shaped("embed/told", vectors, 0, 1, config.hidden_size)
        return self.graph.node("embed/input", "Add", x, vectors)

    def level(self, scope: str, weights: str, num_layers: int, x: str) -> str:
        blocks = self.blocks()
        for layer in range(num_layers):
            x = blocks.block(f"{scope}/layer_{layer}", f"{weights}.layers.{layer}", x)
        return x

    def blocks(self) -> RelationalBlocks | TransformerBlocks:
        if self.config.blocks == "relational":
            return RelationalBlocks(**vars(self))
        return TransformerBlocks(**vars(self))

    def answer(self, state: str) -> None:
        """The answer with its logits, and the halting margin by the model's own rule."""
        graph = self.graph
        config = self.config
        tokens = state
        if config.prefix_len:
            starts = graph.ints(config.prefix_len)
            ends = graph.ints(config.num_positions)
            axes = graph.ints(1)
            tokens = graph.node("answer/tokens", "Slice", state, starts, ends, axes)
        logits = self.linear("logits_BTV", "lm_head", tokens)
        best = graph.node("answer/best", "ArgMax", logits, axis=-1, keepdims=0)
        graph.node("answer_BT", "Cast", best, to=TensorProto.INT32)
        q = self.q_values(state)
        q_halt = graph.node("q_halt_B", "Gather", q, graph.index(0), axis=1)
        if config.halt_rule == "q_halt":
            graph.node("halt_margin_B", "Identity", q_halt)
        else:
            q_continue = graph.node("halting/q_continue", "Gather", q, graph.index(1), axis=1)
            graph.node("halt_margin_B", "Sub", q_halt, q_continue)

    def q_values(self, state: str) -> str:
        """Q values of the first position; for relational blocks, the minimum over all positions."""
        graph = self.graph
        is_relational = self.config.blocks == "relational"
        if is_relational:
            vectors = self.shaped("halting/vectors", state, 0, -1, self.config.num_channels)
        else:
            vectors = graph.node("halting/first", "Gather", state, graph.index(0), axis=1)
        product = self.linear("halting/product", "q_head", vectors)
        q = graph.node("halting/q", "Add", product, self.weight("q_head.bias"))
        if not is_relational:
            return q
        return graph.node("halting/least", "ReduceMin", q, graph.ints(1), keepdims=0)


def _values(names: Iterable[str], config: HRMConfig) -> list[ValueInfoProto]:
    """Graph inputs or outputs with the types and sizes that every engine uses."""
    kinds = engine.INPUTS | engine.OUTPUTS
    values: list[ValueInfoProto] = []
    for name in names:
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(kinds[name]))
        sizes = [getattr(config, size) for size in engine.AXES[name]]
        shape = ["B", *sizes]
        values.append(helper.make_tensor_value_info(name, element_type, shape))
    return values
