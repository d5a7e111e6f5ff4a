"""The relational blocks of the step graph, beside `hrm_model.relational`.

Shapes: B batch, b bands, r rows, s stacks, c columns, S symbols, C channels.
"""

import math
from itertools import product

from hrm_export.block_writer import BlockWriter
from hrm_model.relational import BAND, COLUMN, ROW, STACK, SYMBOL

UNIT_DIMENSIONS = 4
"""A board of bands, rows, stacks and columns has units; others are plain grids."""
NEIGHBORHOOD = 9
"""Cells of a 3x3 neighborhood."""


class RelationalBlocks(BlockWriter):
    def block(self, scope: str, module: str, x: str) -> str:
        if self.config.has_colors:
            return self.colors(scope, module, x)
        if len(self.config.board) == UNIT_DIMENSIONS:
            return self.units(scope, module, x)
        return self.cells(scope, module, x)

    def units(self, scope: str, module: str, x: str) -> str:
        """`UnitBlock.forward`, over candidates [B, b, r, s, c, S, C]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        board = (*config.board, config.num_symbols)
        shape = graph.ints(0, *board, config.num_channels)
        h = node("candidates", "Reshape", x, shape)
        flat = self.flat(f"{scope}/flat", x, config.num_channels)
        m = self.messages(scope, module, flat, board)
        known = self.unit_sums(scope, module, flat, m)
        kept = node("kept", "Relu", known)
        change = self.linear(f"{scope}/out", f"{module}.out_proj", kept)
        h = self.residual(scope, h, change)
        shape = graph.ints(0, config.num_positions, config.hidden_size)
        return node("positions", "Reshape", h, shape)

    def messages(self, scope: str, module: str, flat: str, board: tuple[int, ...]) -> str:
        node = self.graph.within(scope)
        graph = self.graph
        m = self.biased(f"{scope}/message", f"{module}.message", flat)
        m = node("message", "Relu", m)
        shape = graph.ints(-1, *board, self.config.num_channels)
        return node("messages", "Reshape", m, shape)

    def unit_sums(self, scope: str, module: str, flat: str, m: str) -> str:
        """Sum of a candidate's state and the messages of its cell, minis, lines and box."""
        across = self.total(f"{scope}/across", m, COLUMN)
        down = self.total(f"{scope}/down", m, ROW)
        cell = self.total(f"{scope}/cell", m, SYMBOL)
        row = self.total(f"{scope}/row", across, STACK)
        box = self.total(f"{scope}/box", across, ROW)
        column = self.total(f"{scope}/column", down, BAND)

        own_said = self.linear(f"{scope}/own_said", f"{module}.own_proj", m)
        cell_said = self.linear(f"{scope}/cell_said", f"{module}.cell_proj", cell)
        across_said = self.linear(f"{scope}/across_said", f"{module}.mini_proj", across)
        row_said = self.linear(f"{scope}/row_said", f"{module}.line_proj", row)
        box_said = self.linear(f"{scope}/box_said", f"{module}.box_proj", box)
        down_said = self.linear(f"{scope}/down_said", f"{module}.mini_proj", down)
        column_said = self.linear(f"{scope}/column_said", f"{module}.line_proj", column)

        rows = self.sum(f"{scope}/rows", across_said, row_said, box_said)
        columns = self.sum(f"{scope}/columns", down_said, column_said)
        state = self.unit_state(scope, module, flat)
        return self.sum(f"{scope}/known", state, own_said, cell_said, rows, columns)

    def unit_state(self, scope: str, module: str, flat: str) -> str:
        node = self.graph.within(scope)
        config = self.config
        state = self.biased(f"{scope}/state", f"{module}.state", flat)
        shape = self.graph.ints(-1, *config.board, config.num_symbols, config.inner_size)
        return node("states", "Reshape", state, shape)

    def cells(self, scope: str, module: str, x: str) -> str:
        """`GridBlock.forward`, as a 3x3 and a 1x1 convolution of [B, C, r, c]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        shape = graph.ints(0, *config.board, config.hidden_size)
        cells = node("cells", "Reshape", x, shape)
        images = node("images", "Transpose", cells, perm=(0, 3, 1, 2))
        bias = self.weight(f"{module}.near_bias")
        near = self.convolution(f"{scope}/near", f"{module}.near_proj", images, 3, bias)
        kept = node("kept", "Relu", near)
        change = self.convolution(f"{scope}/out", f"{module}.out_proj", kept, 1)
        change = node("changed_cells", "Transpose", change, perm=(0, 2, 3, 1))
        shape = graph.ints(0, config.seq_len, config.hidden_size)
        change = node("changes", "Reshape", change, shape)
        return self.residual(scope, x, change)

    def colors(self, scope: str, module: str, x: str) -> str:
        """`ColorBlock.forward`, over colors of cells [B, r, c, S, C]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        board = (*config.board, config.num_symbols)
        shape = graph.ints(0, *board, config.num_channels)
        h = node("colors", "Reshape", x, shape)
        flat = self.flat(f"{scope}/flat", x, config.num_channels)
        m = self.messages(scope, module, flat, board)
        near = self.near_colors(scope, module, h)
        heard = self.heard_colors(scope, module, m)
        known = self.sum(f"{scope}/known", near, heard)
        kept = node("kept", "Relu", known)
        change = self.linear(f"{scope}/out", f"{module}.out_proj", kept)
        h = self.residual(scope, h, change)
        shape = graph.ints(0, config.seq_len, config.hidden_size)
        return node("positions", "Reshape", h, shape)

    def near_colors(self, scope: str, module: str, h: str) -> str:
        """Messages of the colors of the neighboring cells."""
        node = self.graph.within(scope)
        config = self.config
        last = (config.num_symbols, config.num_channels)
        near = self.around(f"{scope}/near", h, last)
        near = self.flat(f"{scope}/near_flat", near, NEIGHBORHOOD * config.num_channels)
        near = self.biased(f"{scope}/near", f"{module}.near", near)
        shape = self.graph.ints(-1, *config.board, config.num_symbols, config.inner_size)
        return node("nears", "Reshape", near, shape)

    def heard_colors(self, scope: str, module: str, m: str) -> str:
        """Sum of the messages of the board, all colors, the attended cells and the neighbors."""
        node = self.graph.within(scope)
        config = self.config
        cell = self.total(f"{scope}/cell", m, 3)
        share = self.graph.number(1 / config.num_symbols)
        board = self.over_board(f"{scope}/board", m, config.num_symbols)
        whole = self.over_board(f"{scope}/whole", cell, 1)
        whole = node("all", "Mul", whole, share)
        seen = self.seen(scope, module, cell, m)
        around = self.around(f"{scope}/cell", cell, (1, config.num_channels))

        board_said = self.linear(f"{scope}/board_said", f"{module}.board_proj", board)
        all_said = self.linear(f"{scope}/all_said", f"{module}.all_proj", whole)
        seen_said = self.linear(f"{scope}/seen_said", f"{module}.seen_proj", seen)
        cell_said = self.linear(f"{scope}/cell_said", f"{module}.cell_proj", around)
        return self.sum(f"{scope}/said", board_said, all_said, seen_said, cell_said)

    def seen(self, scope: str, module: str, cell: str, m: str) -> str:
        """For each color, the content of the cells that a cell attends to, [B, r, c, S, C]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        heads = config.num_heads
        looks = self.linear(f"{scope}/look", f"{module}.look_proj", cell)
        shape = graph.ints(0, config.seq_len, 2 * heads, config.num_channels)
        looks = node("looks", "Reshape", looks, shape)
        looks = node("heads_first", "Transpose", looks, perm=(0, 2, 1, 3))
        looks = self.rotated(scope, looks)
        q, k = graph.split(f"{scope}/q_k", looks, (heads, heads), axis=1)
        v = self.values_by_head(scope, m)
        seen = self.attended(scope, q, k, v, config.num_channels)
        part = config.num_channels // heads
        shape = graph.ints(0, heads, config.seq_len, config.num_symbols, part)
        seen = node("seen_parts", "Reshape", seen, shape)
        seen = node("seen_first", "Transpose", seen, perm=(0, 2, 3, 1, 4))
        shape = graph.ints(0, *config.board, config.num_symbols, config.num_channels)
        return node("seen", "Reshape", seen, shape)

    def values_by_head(self, scope: str, m: str) -> str:
        """The messages of each head side by side, [B, H, cells, S C / H]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        heads = config.num_heads
        part = config.num_channels // heads
        shape = graph.ints(0, config.seq_len, config.num_symbols, heads, part)
        values = node("values", "Reshape", m, shape)
        perm = (0, 3, 1, 2, 4)
        values = node("values_by_head", "Transpose", values, perm=perm)
        width = math.prod((config.num_symbols, part))
        shape = graph.ints(0, heads, config.seq_len, width)
        return node("v", "Reshape", values, shape)

    def around(self, scope: str, cells: str, last: tuple[int, ...]) -> str:
        """Each cell and its eight neighbors side by side, [B, r, c, ..., 9 C], for a product."""
        node = self.graph.within(scope)
        graph = self.graph
        rows, cols = self.config.board
        rest = [0] * len(last)
        pads = graph.ints(0, 1, 1, *rest, 0, 1, 1, *rest)
        padded = node("padded", "Pad", cells, pads)
        nine: list[str] = []
        for down, right in product(range(3), range(3)):
            starts = graph.ints(down, right)
            ends = graph.ints(down + rows, right + cols)
            axes = graph.ints(1, 2)
            name = f"{scope}/cells_{down}_{right}"
            nine.append(graph.node(name, "Slice", padded, starts, ends, axes))
        return node("around", "Concat", *nine, axis=2 + len(last))

    def over_board(self, name: str, x: str, num_symbols: int) -> str:
        """Mean of [B, r, c, S, C] over the board.

        A product, because ReduceMean adds in another order for B = 1.
        """
        graph = self.graph
        channels = self.config.num_channels
        shape = graph.ints(0, self.config.seq_len, num_symbols * channels)
        flat = graph.node(f"{name}_flat", "Reshape", x, shape)
        shares = self.table("board_shares")
        mean = graph.node(f"{name}_mean", "MatMul", shares, flat)
        shape = graph.ints(0, 1, 1, num_symbols, channels)
        return graph.node(name, "Reshape", mean, shape)
