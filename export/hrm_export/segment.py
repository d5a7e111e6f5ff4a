"""The step graph: one segment as ONNX, from carry to carry. Read `_Segment.think` first, beside `HRM.think`.

Written node by node from the weights: tracing the PyTorch module takes minutes for the published size and leaves
weights behind a Transpose. Matrices are stored [in, out], as MatMul uses them, under their names in the checkpoint.
Shapes: B batch, T tokens, N positions (prefix and tokens), D hidden, K head width, E puzzle-vector width, V vocabulary.
"""

import math
from collections.abc import Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from hrm_edge_runtime.engines import engine
from hrm_export.onnx_graph import GraphWriter, check_graph
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_model.layers import rotary_table
from hrm_model.relational import BAND, COLUMN, ROW, STACK, SYMBOL

UNUSED = ("puzzle_table", "hint_head.weight")
"""The table is an input, hints are for training."""


def segment_graph(model: HRM) -> ModelProto:
    """The step graph in float32 with the batch axis "B" open; the same model gives the same bytes.

    Inputs tokens_BT, puzzle_vector_BE, fresh_B, z_high_BND, z_low_BND; outputs z_high_BND_next, z_low_BND_next,
    answer_BT, halt_margin_B, q_halt_B, logits_BTV. A row that is fresh starts from the initial state.
    """
    segment = _Segment(model)
    segment.think()
    outputs = (*(f"{name}_next" for name in engine.CARRIES), *engine.ANSWERS, engine.LOGITS)
    graph = segment.graph.model("hrm_segment", _values(engine.INPUTS, model.config), _values(outputs, model.config))
    check_graph(graph, {name: array.size for name, array in {**segment.weights, **segment.tables}.items()})
    return graph


class _Segment:
    def __init__(self, model: HRM) -> None:
        self.config = model.config
        self.graph = GraphWriter()
        width, tensors = self.config.hidden_size, model.state_dict()  # what symbols share is written out for each
        tensors |= {"embed_tokens": model.token_table(), "lm_head.weight": model.answer_matrix()}
        starts = {name: tensors[name] for name in ("high_init", "low_init")}
        tensors |= {name: start.tile(width // start.shape[-1]) for name, start in starts.items()}
        self.weights: dict[str, NDArray[np.float32]] = {
            name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items() if name not in UNUSED
        }
        self.tables: dict[str, NDArray[np.float32]] = {}
        if self.config.is_rotary:
            # [N, K]; the first half's sines are negative: `rotated` only swaps halves
            cos, sin = (table.numpy() for table in rotary_table(self.config))
            sign_K = np.repeat(np.array([-1, 1], np.float32), cos.shape[1] // 2)
            self.tables = {"rotary_cos": cos, "rotary_sin": sin * sign_K}
        if self.config.has_colours:
            self.tables["board_shares"] = np.full((1, self.config.seq_len), 1 / self.config.seq_len, np.float32)

    def think(self) -> None:
        config, x = self.config, self.embed()
        high, low = self.start("z_high_BND", "high_init"), self.start("z_low_BND", "low_init")
        if config.arch == "transformer":  # every block once; the carry passes by
            x = self.level("low", "low_level", config.low_layers, x)
            self.answer(self.level("high", "high_level", config.high_layers, x))
        else:
            high, low = self.recur(high, low, x)
            self.answer(high)
        self.graph.publish(high, "z_high_BND_next")
        self.graph.publish(low, "z_low_BND_next")

    def recur(self, high: str, low: str, x: str) -> tuple[str, str]:
        """All cycles of one segment."""
        graph, config = self.graph, self.config
        high_level = "low_level" if config.arch == "trm" else "high_level"
        for step in range(config.high_cycles * config.low_cycles):
            injection = graph.node(f"low_{step}/injection", "Add", high, x)
            low = graph.node(f"low_{step}/state", "Add", low, injection)
            low = self.level(f"low_{step}", "low_level", config.low_layers, low)
            if (step + 1) % config.low_cycles == 0:
                high = graph.node(f"high_{step}/state", "Add", high, low)
                high = self.level(f"high_{step}", high_level, config.high_layers, high)
        return high, low

    def start(self, carry: str, initial: str) -> str:
        """The initial state where a row is fresh: a select, so that garbage in the carry cannot leak."""
        fresh_B11 = self.graph.node(f"{initial}/fresh", "Unsqueeze", "fresh_B", self.graph.ints(1, 2))
        return self.graph.node(f"{initial}/start", "Where", fresh_B11, self.weight(initial), carry)

    def embed(self) -> str:
        graph, config = self.graph, self.config
        x = graph.node("embed/tokens", "Gather", self.weight("embed_tokens"), "tokens_BT")
        if config.prefix_len:
            vector, padding = "puzzle_vector_BE", config.prefix_len * config.hidden_size - config.puzzle_vector_size
            if padding:
                vector = graph.node("embed/padded", "Pad", vector, graph.ints(0, 0, 0, padding))
            shape = graph.ints(0, config.prefix_len, config.hidden_size)
            x = graph.node("embed/input", "Concat", graph.node("embed/prefix", "Reshape", vector, shape), x, axis=1)
        elif config.puzzle_vector_size:
            parts = graph.ints(0, config.num_symbols, config.puzzle_vector_size // config.num_symbols)
            parts = graph.node("embed/parts", "Reshape", "puzzle_vector_BE", parts)
            told = self.linear("embed/vectors", "vector_proj", parts)
            told = graph.node("embed/told", "Reshape", told, graph.ints(0, 1, config.hidden_size))
            x = graph.node("embed/input", "Add", x, told)
        if config.positions == "learned":
            x = graph.node("embed/positioned", "Add", x, self.weight("embed_positions"))
        scale = math.sqrt(config.num_channels * (0.5 if config.positions == "learned" else 1.0))
        return graph.node("embed/scaled", "Mul", x, graph.number(scale))

    def level(self, scope: str, weights: str, num_layers: int, x: str) -> str:
        for layer in range(num_layers):
            inner, module = f"{scope}/layer_{layer}", f"{weights}.layers.{layer}"
            if self.config.blocks == "relational":
                has_units = len(self.config.board) == 4
                block = self.colours if self.config.has_colours else self.units if has_units else self.cells
                x = block(inner, module, x)
                continue
            if self.config.blocks == "mixer":
                x = self.mixed(f"{inner}/mixer", f"{module}.mlp_t", x)
            else:
                change = self.attention(f"{inner}/attention", f"{module}.self_attn", x)
                x = self.residual(f"{inner}/attention", x, change)
            x = self.residual(f"{inner}/mlp", x, self.swiglu(f"{inner}/mlp", f"{module}.mlp", x))
        return x

    def residual(self, scope: str, x: str, change: str) -> str:
        """rms(x + change), in primitive operators: TensorRT 10.3 knows no RMSNormalization."""
        graph = self.graph
        total = graph.node(f"{scope}/residual", "Add", x, change)
        square = graph.node(f"{scope}/square", "Pow", total, graph.number(2.0))
        mean = graph.node(f"{scope}/mean", "ReduceMean", square, graph.ints(-1), keepdims=1)
        steady = graph.node(f"{scope}/steady", "Add", mean, graph.number(self.config.rms_norm_eps))
        return graph.node(f"{scope}/norm", "Div", total, graph.node(f"{scope}/rms", "Sqrt", steady))

    def attention(self, scope: str, module: str, x: str) -> str:
        graph, config = self.graph, self.config
        q, k, v = self.queries_keys_values(scope, module, x)
        mixed = self.attended(scope, q, k, v, config.head_size)
        mixed = graph.node(f"{scope}/mixed_back", "Transpose", mixed, perm=(0, 2, 1, 3))
        shape = graph.ints(0, config.num_positions, config.hidden_size)
        mixed = graph.node(f"{scope}/mixed_flat", "Reshape", mixed, shape)
        return self.linear(f"{scope}/o", f"{module}.o_proj", mixed)

    def attended(self, scope: str, q: str, k: str, v: str, head_size: int) -> str:
        """MatMul, Softmax, MatMul with the scale on the queries: the form that TensorRT fuses."""
        graph = self.graph
        q = graph.node(f"{scope}/q_scaled", "Mul", q, graph.number(1 / math.sqrt(head_size)))
        k = graph.node(f"{scope}/k_turned", "Transpose", k, perm=(0, 1, 3, 2))
        scores = graph.node(f"{scope}/scores", "MatMul", q, k)
        return graph.node(f"{scope}/mixed", "MatMul", graph.node(f"{scope}/shares", "Softmax", scores, axis=-1), v)

    def queries_keys_values(self, scope: str, module: str, x: str) -> list[str]:
        """Each [B, H, N, K]; rotated together where positions are rotary."""
        graph, config, heads = self.graph, self.config, self.config.num_heads
        shape = graph.ints(0, config.num_positions, 3 * heads, config.head_size)
        qkv = graph.node(f"{scope}/heads", "Reshape", self.linear(f"{scope}/qkv", f"{module}.qkv_proj", x), shape)
        qkv = graph.node(f"{scope}/heads_first", "Transpose", qkv, perm=(0, 2, 1, 3))
        if config.positions != "rope":
            return graph.split(f"{scope}/q_k_v", qkv, (heads, heads, heads), axis=1)
        qk, v = graph.split(f"{scope}/qk_v", qkv, (2 * heads, heads), axis=1)
        return [*graph.split(f"{scope}/q_k", self.rotated(scope, qk), (heads, heads), axis=1), v]

    def rotated(self, scope: str, x: str) -> str:
        """x cos + (-second, first) sin, with the sign folded into the table of sines."""
        graph = self.graph
        cos, sin = (graph.tensor(name, self.tables[name]) for name in ("rotary_cos", "rotary_sin"))
        half = self.tables["rotary_cos"].shape[1] // 2
        first, second = graph.split(f"{scope}/halves", x, (half, half), axis=3)
        turned = graph.node(f"{scope}/halves_swapped", "Concat", second, first, axis=3)
        straight = graph.node(f"{scope}/rotary_cos", "Mul", x, cos)
        crossed = graph.node(f"{scope}/rotary_sin", "Mul", turned, sin)
        return graph.node(f"{scope}/rotated", "Add", straight, crossed)

    def mixed(self, scope: str, module: str, x: str) -> str:
        """`MixerBlock.forward` over the positions: channels first, [B, D, N], and back."""
        turned = self.graph.node(f"{scope}/channels_first", "Transpose", x, perm=(0, 2, 1))
        turned = self.residual(scope, turned, self.swiglu(scope, module, turned))
        return self.graph.node(f"{scope}/positions_first", "Transpose", turned, perm=(0, 2, 1))

    def swiglu(self, scope: str, module: str, x: str) -> str:
        graph, width = self.graph, self.weights[f"{module}.down_proj.weight"].shape[1]
        gate_up = self.linear(f"{scope}/gate_up", f"{module}.gate_up_proj", x)
        gate, up = graph.split(f"{scope}/gate_and_up", gate_up, (width, width), axis=2)
        silu = graph.node(f"{scope}/silu", "Mul", gate, graph.node(f"{scope}/sigmoid", "Sigmoid", gate))
        return self.linear(f"{scope}/down", f"{module}.down_proj", graph.node(f"{scope}/gated", "Mul", silu, up))

    def units(self, scope: str, module: str, x: str) -> str:
        """`UnitBlock.forward`, over candidates [B, b, r, s, c, S, C]."""
        graph, config = self.graph, self.config
        shape = (0, *config.board, config.num_symbols, config.num_channels)
        h = graph.node(f"{scope}/candidates", "Reshape", x, graph.ints(*shape))
        flat = self.flat(f"{scope}/flat", x, config.num_channels)
        m = graph.node(f"{scope}/message", "Relu", self.biased(f"{scope}/message", f"{module}.message", flat))
        m = graph.node(f"{scope}/messages", "Reshape", m, graph.ints(-1, *shape[1:]))
        across, down = self.total(f"{scope}/across", m, COLUMN), self.total(f"{scope}/down", m, ROW)
        heard = {
            "own": (m, "own"),
            "cell": (self.total(f"{scope}/cell", m, SYMBOL), "cell"),
            "across": (across, "mini"),
            "row": (self.total(f"{scope}/row", across, STACK), "line"),
            "box": (self.total(f"{scope}/box", across, ROW), "box"),
            "down": (down, "mini"),
            "column": (self.total(f"{scope}/column", down, BAND), "line"),
        }
        said = {
            name: self.linear(f"{scope}/{name}_said", f"{module}.{matrix}_proj", value)
            for name, (value, matrix) in heard.items()
        }
        rows = self.sum(f"{scope}/rows", said["across"], said["row"], said["box"])
        columns = self.sum(f"{scope}/columns", said["down"], said["column"])
        state = self.biased(f"{scope}/state", f"{module}.state", flat)
        state = graph.node(f"{scope}/states", "Reshape", state, graph.ints(-1, *shape[1:-1], config.inner_size))
        known = self.sum(f"{scope}/known", state, said["own"], said["cell"], rows, columns)
        change = self.linear(f"{scope}/out", f"{module}.out_proj", graph.node(f"{scope}/kept", "Relu", known))
        h = self.residual(scope, h, change)
        return graph.node(f"{scope}/positions", "Reshape", h, graph.ints(0, config.num_positions, config.hidden_size))

    def cells(self, scope: str, module: str, x: str) -> str:
        """`GridBlock.forward`."""
        graph, config = self.graph, self.config
        cells = graph.node(f"{scope}/cells", "Reshape", x, graph.ints(0, *config.board, config.hidden_size))
        around = self.around(scope, cells, last=(config.hidden_size,))
        around = self.flat(f"{scope}/flat", around, 9 * config.hidden_size)
        kept = graph.node(f"{scope}/kept", "Relu", self.biased(f"{scope}/near", f"{module}.near", around))
        change = self.linear(f"{scope}/out", f"{module}.out_proj", kept)
        shape = graph.ints(-1, config.seq_len, config.hidden_size)
        return self.residual(scope, x, graph.node(f"{scope}/changes", "Reshape", change, shape))

    def colours(self, scope: str, module: str, x: str) -> str:
        """`ColourBlock.forward`, over colours of cells [B, r, c, S, C]."""
        graph, config = self.graph, self.config
        last = (config.num_symbols, config.num_channels)
        h = graph.node(f"{scope}/colours", "Reshape", x, graph.ints(0, *config.board, *last))
        flat = self.flat(f"{scope}/flat", x, config.num_channels)
        m = graph.node(f"{scope}/message", "Relu", self.biased(f"{scope}/message", f"{module}.message", flat))
        m = graph.node(f"{scope}/messages", "Reshape", m, graph.ints(-1, *config.board, *last))
        near = self.flat(f"{scope}/near_flat", self.around(f"{scope}/near", h, last), 9 * config.num_channels)
        near = self.biased(f"{scope}/near", f"{module}.near", near)
        shape = graph.ints(-1, *config.board, config.num_symbols, config.inner_size)
        near = graph.node(f"{scope}/nears", "Reshape", near, shape)
        cell, share = self.total(f"{scope}/cell", m, 3), graph.number(1 / config.num_symbols)
        heard = {
            "board": self.over_board(f"{scope}/board", m, config.num_symbols),
            "all": graph.node(f"{scope}/all", "Mul", self.over_board(f"{scope}/whole", cell, 1), share),
            "seen": self.seen(scope, module, cell, m),
            "cell": self.around(f"{scope}/cell", cell, (1, config.num_channels)),
        }
        said = [self.linear(f"{scope}/{name}_said", f"{module}.{name}_proj", value) for name, value in heard.items()]
        kept = graph.node(f"{scope}/kept", "Relu", self.sum(f"{scope}/known", near, self.sum(f"{scope}/said", *said)))
        h = self.residual(scope, h, self.linear(f"{scope}/out", f"{module}.out_proj", kept))
        return graph.node(f"{scope}/positions", "Reshape", h, graph.ints(0, config.seq_len, config.hidden_size))

    def seen(self, scope: str, module: str, cell: str, m: str) -> str:
        """Of each colour what the cells hold that a cell looks at, [B, r, c, S, C]."""
        graph, config, heads = self.graph, self.config, self.config.num_heads
        looks = self.linear(f"{scope}/look", f"{module}.look_proj", cell)
        shape = graph.ints(0, config.seq_len, 2 * heads, config.num_channels)
        looks = graph.node(f"{scope}/looks", "Reshape", looks, shape)
        looks = graph.node(f"{scope}/heads_first", "Transpose", looks, perm=(0, 2, 1, 3))
        q, k = graph.split(f"{scope}/q_k", self.rotated(scope, looks), (heads, heads), axis=1)
        parts = (config.num_symbols, config.num_channels // heads)
        values = graph.node(f"{scope}/values", "Reshape", m, graph.ints(0, config.seq_len, parts[0], heads, parts[1]))
        values = graph.node(f"{scope}/values_by_head", "Transpose", values, perm=(0, 3, 1, 2, 4))
        values = graph.node(f"{scope}/v", "Reshape", values, graph.ints(0, heads, config.seq_len, math.prod(parts)))
        seen = self.attended(scope, q, k, values, config.num_channels)
        seen = graph.node(f"{scope}/seen_parts", "Reshape", seen, graph.ints(0, heads, config.seq_len, *parts))
        seen = graph.node(f"{scope}/seen_first", "Transpose", seen, perm=(0, 2, 3, 1, 4))
        shape = graph.ints(0, *config.board, config.num_symbols, config.num_channels)
        return graph.node(f"{scope}/seen", "Reshape", seen, shape)

    def around(self, scope: str, cells: str, last: tuple[int, ...]) -> str:
        """The nine cells side by side, [B, r, c, ..., 9 C]: a product follows, which every precision knows."""
        graph, (rows, cols), rest = self.graph, self.config.board, [0] * len(last)
        padded = graph.node(f"{scope}/padded", "Pad", cells, graph.ints(0, 1, 1, *rest, 0, 1, 1, *rest))
        nine: list[str] = []
        for down, right in product(range(3), range(3)):
            bounds = graph.ints(down, right), graph.ints(down + rows, right + cols), graph.ints(1, 2)
            nine.append(graph.node(f"{scope}/cells_{down}_{right}", "Slice", padded, *bounds))
        return graph.node(f"{scope}/around", "Concat", *nine, axis=2 + len(last))

    def flat(self, name: str, x: str, width: int) -> str:
        """[rows, width], for `biased`."""
        return self.graph.node(name, "Reshape", x, self.graph.ints(-1, width))

    def biased(self, name: str, module: str, x: str) -> str:
        """Product and bias of a matrix: of two dimensions, since ONNX Runtime only then makes one Gemm of both."""
        weighed = self.linear(f"{name}_weighed", f"{module}_proj", x)
        return self.graph.node(f"{name}_biased", "Add", weighed, self.weight(f"{module}_bias"))

    def total(self, name: str, x: str, axis: int) -> str:
        return self.graph.node(name, "ReduceSum", x, self.graph.ints(axis), keepdims=1)

    def over_board(self, name: str, x: str, num_symbols: int) -> str:
        """Mean of [B, r, c, S, C] over the board; a product, since ReduceMean adds up otherwise for B = 1."""
        cells, channels = self.config.seq_len, self.config.num_channels
        flat = self.graph.node(f"{name}_flat", "Reshape", x, self.graph.ints(0, cells, num_symbols * channels))
        shares = self.graph.tensor("board_shares", self.tables["board_shares"])
        mean = self.graph.node(f"{name}_mean", "MatMul", shares, flat)
        return self.graph.node(name, "Reshape", mean, self.graph.ints(0, 1, 1, num_symbols, channels))

    def sum(self, name: str, *values: str) -> str:
        total = values[0]
        for place, value in enumerate(values[1:]):
            total = self.graph.node(f"{name}_{place}", "Add", total, value)
        return total

    def answer(self, state: str) -> None:
        """The answer with its logits, and the halting margin by the model's own rule."""
        graph, config = self.graph, self.config
        tokens = state
        if config.prefix_len:
            bounds = (graph.ints(config.prefix_len), graph.ints(config.num_positions), graph.ints(1))
            tokens = graph.node("answer/tokens", "Slice", state, *bounds)
        logits = self.linear("logits_BTV", "lm_head", tokens)
        best = graph.node("answer/best", "ArgMax", logits, axis=-1, keepdims=0)
        graph.node("answer_BT", "Cast", best, to=TensorProto.INT32)
        if config.blocks == "relational":
            summary = graph.node("halting/vectors", "Reshape", state, graph.ints(0, -1, config.num_channels))
        else:
            summary = graph.node("halting/first", "Gather", state, graph.index(0), axis=1)
        product = self.linear("halting/product", "q_head", summary)
        q = graph.node("halting/q", "Add", product, self.weight("q_head.bias"))
        if config.blocks == "relational":
            q = graph.node("halting/least", "ReduceMin", q, graph.ints(1), keepdims=0)
        q_halt = graph.node("q_halt_B", "Gather", q, graph.index(0), axis=1)
        if config.halt_rule == "q_halt":
            graph.node("halt_margin_B", "Identity", q_halt)
        else:
            q_continue = graph.node("halting/q_continue", "Gather", q, graph.index(1), axis=1)
            graph.node("halt_margin_B", "Sub", q_halt, q_continue)

    def linear(self, name: str, module: str, x: str) -> str:
        matrix = self.graph.tensor(f"{module}.weight", self.weights[f"{module}.weight"].T)
        return self.graph.node(name, "MatMul", x, matrix)

    def weight(self, name: str) -> str:
        return self.graph.tensor(name, self.weights[name])


def _values(names: Iterable[str], config: HRMConfig) -> list[ValueInfoProto]:
    """Graph inputs or outputs in the types and sizes that every engine keeps."""
    types = {
        name: helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for name, kind in (engine.INPUTS | engine.OUTPUTS).items()
    }
    shapes = {name: ["B", *(getattr(config, size) for size in sizes)] for name, sizes in engine.AXES.items()}
    return [helper.make_tensor_value_info(name, types[name], shapes[name]) for name in names]
