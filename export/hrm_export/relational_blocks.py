"""The relational blocks of the step graph, beside `hrm_model.relational`.

Shapes: B batch, b bands, r rows, s stacks, c columns, S symbols, C channels, F inner width,
N positions, D hidden.
"""

from hrm_export.block_writer import BlockWriter
from hrm_model.relational import BAND, COLUMN, ROW, STACK, SYMBOL

UNIT_DIMENSIONS = 4
"""A board of bands, rows, stacks and columns has units; others are plain grids."""
CHANNEL = 1
"""The axis of the channels of an image [images, C, r, c]."""


class RelationalBlocks(BlockWriter):
    def inside(self, name: str, state: str) -> str:
        """The state as the blocks compute with it: colors as images [B S, C, r, c]."""
        config = self.config
        if not config.has_colors:
            return state
        graph = self.graph
        shape = graph.ints(0, config.seq_len, config.num_symbols, config.num_channels)
        vectors = graph.node(f"{name}/vectors", "Reshape", state, shape)
        channels = graph.node(f"{name}/channels", "Transpose", vectors, perm=(0, 2, 3, 1))
        shape = graph.ints(-1, config.num_channels, *config.board)
        return graph.node(f"{name}/images", "Reshape", channels, shape)

    def outside(self, name: str, state: str) -> str:
        """The inverse of `inside`: [B, N, D]."""
        config = self.config
        if not config.has_colors:
            return state
        graph = self.graph
        shape = self.by_color(config.num_channels, config.seq_len)
        channels = graph.node(f"{name}/channels_next", "Reshape", state, shape)
        vectors = graph.node(f"{name}/vectors_next", "Transpose", channels, perm=(0, 3, 1, 2))
        shape = graph.ints(0, config.seq_len, config.hidden_size)
        return graph.node(f"{name}/positions_next", "Reshape", vectors, shape)

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

    def colors(self, scope: str, module: str, images: str) -> str:
        """`ColorBlock.forward`; each color of a board is an image [C, r, c]."""
        node = self.graph.within(scope)
        messages = self.image_messages(scope, module, images)
        bias = self.weight(f"{module}.near_bias")
        near = self.convolution(f"{scope}/near", f"{module}.near_proj", images, 3, bias)
        cells = self.over_colors(scope, messages)
        attended = self.attended_images(scope, module, cells, messages)
        seen = self.convolution(f"{scope}/seen", f"{module}.seen_proj", attended, 1)
        own = node("own", "Add", near, seen)
        shared = self.shared_by_cells(scope, module, cells, messages)
        known = node("known", "Add", own, shared)
        kept = node("kept", "Relu", known)
        change = self.convolution(f"{scope}/out", f"{module}.out_proj", kept, 1)
        return self.residual(scope, images, change, axis=CHANNEL)

    def image_messages(self, scope: str, module: str, images: str) -> str:
        bias = self.weight(f"{module}.message_bias")
        sent = self.convolution(f"{scope}/message", f"{module}.message_proj", images, 1, bias)
        return self.graph.node(f"{scope}/messages", "Relu", sent)

    def over_colors(self, scope: str, messages: str) -> str:
        """Sum of the messages of all colors, one image for each board [B, C, r, c].

        A product, because ReduceSum adds the first axes in another order for B = 1.
        """
        node = self.graph.within(scope)
        config = self.config
        shape = self.by_color(config.num_channels * config.seq_len)
        colors = node("colors", "Reshape", messages, shape)
        total = node("all_colors", "MatMul", self.table("every_color"), colors)
        shape = self.graph.ints(-1, config.num_channels, *config.board)
        return node("cells", "Reshape", total, shape)

    def shared_by_cells(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of all colors of the neighbors, and of the board, for each image."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        around = self.convolution(f"{scope}/around", f"{module}.cell_proj", cells, 3)
        row = graph.ints(-1, 1, config.inner_size, config.seq_len)
        around = node("around_each", "Reshape", around, row)
        board = self.over_board(scope, module, cells, messages)
        shared = node("shared", "Add", around, board)
        shape = graph.ints(-1, config.inner_size, *config.board)
        return node("shared_images", "Reshape", shared, shape)

    def over_board(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of each color and of all colors, averaged over the board, [B, S, F, 1]."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        shape = self.by_color(config.num_channels, config.seq_len)
        flat = node("colors_flat", "Reshape", messages, shape)
        of_color = node("mean_color", "ReduceMean", flat, graph.ints(3), keepdims=0)
        board = self.linear(f"{scope}/board", f"{module}.board_proj", of_color)
        flat = node("all_flat", "Reshape", cells, graph.ints(0, 1, config.num_channels, -1))
        total = node("mean_total", "ReduceMean", flat, graph.ints(3), keepdims=0)
        of_all = node("mean_all", "Mul", total, graph.number(1 / config.num_symbols))
        whole = self.linear(f"{scope}/whole", f"{module}.all_proj", of_all)
        said = node("board_and_whole", "Add", board, whole)
        return node("board_said", "Reshape", said, self.by_color(config.inner_size, 1))

    def attended_images(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of each color from the cells that a cell attends to, as images."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        heads = config.num_heads
        q, k = self.queries_and_keys(scope, module, cells)
        part = config.num_channels // heads
        by_color = self.by_color(heads, part * config.seq_len)
        values = node("values", "Reshape", messages, by_color)
        values = node("by_head", "Transpose", values, perm=(0, 2, 1, 3))
        shape = graph.ints(0, heads, part * config.num_symbols, config.seq_len)
        values = node("v", "Reshape", values, shape)
        shares = self.attention_shares(scope, q, k, config.num_channels)
        shares = node("shares_by_key", "Transpose", shares, perm=(0, 1, 3, 2))
        mixed = node("mixed", "MatMul", values, shares)
        shape = graph.ints(0, heads, config.num_symbols, part * config.seq_len)
        mixed = node("mixed_by_head", "Reshape", mixed, shape)
        mixed = node("mixed_by_color", "Transpose", mixed, perm=(0, 2, 1, 3))
        shape = graph.ints(-1, config.num_channels, *config.board)
        return node("attended", "Reshape", mixed, shape)

    def queries_and_keys(self, scope: str, module: str, cells: str) -> list[str]:
        """Each [B, H, cells, C], rotated by row and column."""
        node = self.graph.within(scope)
        graph = self.graph
        config = self.config
        heads = config.num_heads
        shape = graph.ints(0, config.num_channels, config.seq_len)
        flat = node("cells_flat", "Reshape", cells, shape)
        flat = node("cells_first", "Transpose", flat, perm=(0, 2, 1))
        looks = self.linear(f"{scope}/look", f"{module}.look_proj", flat)
        shape = graph.ints(0, config.seq_len, 2 * heads, config.num_channels)
        looks = node("looks", "Reshape", looks, shape)
        looks = node("heads_first", "Transpose", looks, perm=(0, 2, 1, 3))
        looks = self.rotated(scope, looks)
        return graph.split(f"{scope}/q_k", looks, (heads, heads), axis=1)

    def by_color(self, *sizes: int) -> str:
        """The shape [B, S, sizes]."""
        return self.graph.ints(-1, self.config.num_symbols, *sizes)
