"""The relational blocks of the step graph, beside `hrm_model.families`.

Shapes: B batch, b bands, r rows, s stacks, c columns, S symbols, C channels, F inner width,
N positions, D hidden.
"""

from hrm_export.block_writer import BlockWriter

CHANNEL = 1
"""The axis of the channels of an image [images, C, r, c]."""


class RelationalBlocks(BlockWriter):
    def inside(self, name: str, state: str) -> str:
        """The state as the blocks compute with it.

        Candidates of a board of units are rows [B N S, C]; colors are images [B S, C, r, c].
        """
        config = self.config
        if config.has_units:
            return self.shaped(f"{name}/candidates", state, -1, config.num_channels)
        if not config.has_colors:
            return state
        sizes = (config.seq_len, config.num_symbols, config.num_channels)
        vectors = self.shaped(f"{name}/vectors", state, 0, *sizes)
        channels = self.graph.node(f"{name}/channels", "Transpose", vectors, perm=(0, 2, 3, 1))
        return self.shaped(f"{name}/images", channels, -1, config.num_channels, *config.board)

    def outside(self, name: str, state: str) -> str:
        """The inverse of `inside`: [B, N, D]."""
        config = self.config
        sizes = (config.seq_len, config.hidden_size)
        if config.has_units:
            return self.shaped(f"{name}/positions_next", state, -1, *sizes)
        if not config.has_colors:
            return state
        by_channel = (config.num_channels, config.seq_len)
        channels = self.by_color(f"{name}/channels_next", state, *by_channel)
        vectors = f"{name}/vectors_next"
        vectors = self.graph.node(vectors, "Transpose", channels, perm=(0, 3, 1, 2))
        return self.shaped(f"{name}/positions_next", vectors, 0, *sizes)

    def block(self, scope: str, module: str, x: str) -> str:
        if self.config.has_colors:
            return self.colors(scope, module, x)
        if self.config.has_units:
            return self.units(scope, module, x)
        return self.cells(scope, module, x)

    def units(self, scope: str, module: str, x: str) -> str:
        """`UnitBlock.forward`, over candidates in rows [B N S, C].

        No tensor has more than five axes: OpenVINO computes wrong sums over seven.
        """
        node = self.graph.within(scope)
        linear = self.products(scope, module)
        m = self.biased(f"{scope}/message", f"{module}.message", x)
        m = node("message", "Relu", m)
        known = self.state_and_rows(scope, module, x, m)
        columns = self.column_messages(scope, module, m)
        known = node("known", "Add", known, columns)
        kept = node("kept", "Relu", known)
        change = linear("out", "out_proj", kept)
        change = self.shaped(f"{scope}/change", change, -1, self.config.num_channels)
        return self.residual(scope, x, change)

    def state_and_rows(self, scope: str, module: str, x: str, m: str) -> str:
        """Sum of a candidate's state and the messages of its cell, minis, rows and box.

        By bands: [B b, r, s c S, F].
        """
        config = self.config
        linear = self.products(scope, module)
        _, rows, stacks, columns = config.board
        lines = (-1, stacks, columns, config.num_symbols)
        m = self.shaped(f"{scope}/messages", m, *lines, config.num_channels)
        own = linear("own_said", "own_proj", m)
        cell = self.total(f"{scope}/cell", m, 3)
        cell = linear("cell_said", "cell_proj", cell)
        across = self.total(f"{scope}/across", m, 2)
        across = self.row_messages(scope, module, across)
        state = self.biased(f"{scope}/state", f"{module}.state", x)
        state = self.shaped(f"{scope}/states", state, *lines, config.inner_size)
        known = self.sum(f"{scope}/known_lines", state, own, cell, across)
        values = stacks * columns * config.num_symbols
        return self.shaped(f"{scope}/known_bands", known, -1, rows, values, config.inner_size)

    def row_messages(self, scope: str, module: str, across: str) -> str:
        """Messages of the minis of a row, of the row and of the box, [B b r, s, 1, S, F]."""
        config = self.config
        linear = self.products(scope, module)
        _, rows, stacks, _ = config.board
        bands = (-1, rows, stacks * config.num_symbols)
        row = self.total(f"{scope}/row", across, 1)
        box = self.shaped(f"{scope}/across_bands", across, *bands, config.num_channels)
        box = self.total(f"{scope}/box", box, 1)
        across = linear("across_said", "mini_proj", across)
        row = linear("row_said", "line_proj", row)
        box = linear("box_said", "box_proj", box)
        said = self.sum(f"{scope}/minis_and_rows", across, row)
        said = self.shaped(f"{scope}/row_bands", said, *bands, config.inner_size)
        said = self.sum(f"{scope}/rows", said, box)
        lines = (-1, stacks, 1, config.num_symbols)
        return self.shaped(f"{scope}/row_lines", said, *lines, config.inner_size)

    def column_messages(self, scope: str, module: str, m: str) -> str:
        """Messages of the minis of a column and of the column, [B b, 1, s c S, F]."""
        config = self.config
        linear = self.products(scope, module)
        bands, rows, stacks, columns = config.board
        values = stacks * columns * config.num_symbols
        down = self.shaped(f"{scope}/message_bands", m, -1, rows, values, config.num_channels)
        down = self.total(f"{scope}/down", down, 1)
        down = self.shaped(f"{scope}/down_boards", down, -1, bands, values, config.num_channels)
        column = self.total(f"{scope}/column", down, 1)
        down = linear("down_said", "mini_proj", down)
        column = linear("column_said", "line_proj", column)
        said = self.sum(f"{scope}/columns", down, column)
        return self.shaped(f"{scope}/column_bands", said, -1, 1, values, config.inner_size)

    def cells(self, scope: str, module: str, x: str) -> str:
        """`GridBlock.forward`, as a 3x3 and a 1x1 convolution of [B, C, r, c]."""
        node = self.graph.within(scope)
        config = self.config
        cells = self.shaped(f"{scope}/cells", x, 0, *config.board, config.hidden_size)
        images = node("images", "Transpose", cells, perm=(0, 3, 1, 2))
        bias = self.weight(f"{module}.near_bias")
        near = self.convolution(f"{scope}/near", f"{module}.near_proj", images, 3, bias)
        kept = node("kept", "Relu", near)
        change = self.convolution(f"{scope}/out", f"{module}.out_proj", kept, 1)
        change = node("changed_cells", "Transpose", change, perm=(0, 2, 3, 1))
        change = self.shaped(f"{scope}/changes", change, 0, config.seq_len, config.hidden_size)
        return self.residual(scope, x, change)

    def colors(self, scope: str, module: str, images: str) -> str:
        """`ColorBlock.forward`; each color of a board is an image [C, r, c]."""
        node = self.graph.within(scope)
        bias = self.weight(f"{module}.message_bias")
        sent = self.convolution(f"{scope}/message", f"{module}.message_proj", images, 1, bias)
        messages = node("messages", "Relu", sent)
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

    def over_colors(self, scope: str, messages: str) -> str:
        """Sum of the messages of all colors, one image for each board [B, C, r, c].

        A product, because ReduceSum adds the first axes in another order for B = 1.
        """
        config = self.config
        num_values = config.num_channels * config.seq_len
        colors = self.by_color(f"{scope}/colors", messages, num_values)
        every = self.table("every_color")
        total = self.graph.node(f"{scope}/all_colors", "MatMul", every, colors)
        return self.shaped(f"{scope}/cells", total, -1, config.num_channels, *config.board)

    def shared_by_cells(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of all colors of the neighbors, and of the board, for each image."""
        config = self.config
        around = self.convolution(f"{scope}/around", f"{module}.cell_proj", cells, 3)
        width = config.inner_size
        around = self.shaped(f"{scope}/around_each", around, -1, 1, width, config.seq_len)
        board = self.over_board(scope, module, cells, messages)
        shared = self.graph.node(f"{scope}/shared", "Add", around, board)
        return self.shaped(f"{scope}/shared_images", shared, -1, width, *config.board)

    def over_board(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of each color and of all colors, averaged over the board, [B, S, F, 1]."""
        graph = self.graph
        node = graph.within(scope)
        linear = self.products(scope, module)
        config = self.config
        channels = config.num_channels
        flat = self.by_color(f"{scope}/colors_flat", messages, channels, config.seq_len)
        of_color = node("mean_color", "ReduceMean", flat, graph.ints(3), keepdims=0)
        board = linear("board", "board_proj", of_color)
        flat = self.shaped(f"{scope}/all_flat", cells, 0, 1, channels, -1)
        total = node("mean_total", "ReduceMean", flat, graph.ints(3), keepdims=0)
        of_all = node("mean_all", "Mul", total, graph.number(1 / config.num_symbols))
        whole = linear("whole", "all_proj", of_all)
        said = node("board_and_whole", "Add", board, whole)
        return self.by_color(f"{scope}/board_said", said, config.inner_size, 1)

    def attended_images(self, scope: str, module: str, cells: str, messages: str) -> str:
        """Messages of each color from the cells that a cell attends to, as images."""
        node = self.graph.within(scope)
        config = self.config
        heads = config.num_heads
        size = config.seq_len
        part = config.num_channels // heads
        q, k = self.queries_and_keys(scope, module, cells)
        values = self.by_color(f"{scope}/values", messages, heads, part * size)
        values = node("by_head", "Transpose", values, perm=(0, 2, 1, 3))
        values = self.shaped(f"{scope}/v", values, 0, heads, part * config.num_symbols, size)
        shares = self.attention_shares(scope, q, k, config.num_channels)
        shares = node("shares_by_key", "Transpose", shares, perm=(0, 1, 3, 2))
        mixed = node("mixed", "MatMul", values, shares)
        by_head = (heads, config.num_symbols, part * size)
        mixed = self.shaped(f"{scope}/mixed_by_head", mixed, 0, *by_head)
        mixed = node("mixed_by_color", "Transpose", mixed, perm=(0, 2, 1, 3))
        return self.shaped(f"{scope}/attended", mixed, -1, config.num_channels, *config.board)

    def queries_and_keys(self, scope: str, module: str, cells: str) -> list[str]:
        """Each [B, H, cells, C], rotated by row and column."""
        node = self.graph.within(scope)
        linear = self.products(scope, module)
        config = self.config
        heads = config.num_heads
        flat = self.shaped(f"{scope}/cells_flat", cells, 0, config.num_channels, config.seq_len)
        flat = node("cells_first", "Transpose", flat, perm=(0, 2, 1))
        looks = linear("look", "look_proj", flat)
        sizes = (config.seq_len, 2 * heads, config.num_channels)
        looks = self.shaped(f"{scope}/looks", looks, 0, *sizes)
        looks = node("heads_first", "Transpose", looks, perm=(0, 2, 1, 3))
        looks = self.rotated(scope, looks)
        return self.graph.split(f"{scope}/q_k", looks, (heads, heads), axis=1)

    def by_color(self, name: str, x: str, *sizes: int) -> str:
        """Reshape to [B, S, sizes]."""
        return self.shaped(name, x, -1, self.config.num_symbols, *sizes)
