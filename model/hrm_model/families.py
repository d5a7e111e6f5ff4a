"""The families of models beside HRM; `model_of` returns the network of a configuration.

The blocks of `Relational` are made of the puzzle's own relations; read `UnitBlock.forward` first.
Places that the puzzle cannot tell apart share every weight, so the model need not learn symmetries.

- A board of units (Sudoku) has one vector per candidate, a symbol in a cell. Relabeling, exchanging
  rows, columns, bands or stacks, and transposing move the state and change nothing else.
- A plain grid has one vector per cell, and weights for its eight neighbors. They do not depend
  on the board's size.
- If the cells of a grid hold colors that can be exchanged (ARC), it has one vector per color and
  cell. The task's vector tells colors apart: each color takes its part of it.

Shapes: B batch, T = N positions (cells), S symbols, C channels of a vector, D = S * C hidden, F
inner width, V vocabulary, E puzzle-vector width. A board of units has bands b, rows of a band r,
stacks s and columns of a stack c.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry
from hrm_model.layers import Level, Linear, Rotation, q_values, rotate
from hrm_model.ops import residual_norm


class TRM(HRM):
    """The Tiny Recursive Model (2025): one level for both, learned through the last cycle."""

    family = "trm"

    def _add_levels(self) -> None:
        self.low_level = Level(self.config, self.config.low_layers, self._block)

    @property
    def levels(self) -> list[Level]:
        return [self.low_level]


class Transformer(HRM):
    """The baseline: an ordinary transformer of the same blocks, which runs each block once."""

    family = "transformer"

    def _advance(self, carry: Carry, x_BND: Tensor) -> tuple[Carry, Tensor]:
        rotation = self._rotation()
        return carry, self.high_level(self.low_level(x_BND, rotation), rotation)


# Axes of a state as candidates [B, b, r, s, c, S, C].
BAND = 1
ROW = 2
STACK = 3
COLUMN = 4
SYMBOL = 5

# Rows of the token embedding: what a candidate can be.
OPEN = 0
GIVEN = 1
RULED_OUT = 2
NUM_STATES = 3  # fixed symbols have a vector of their own after these


class UnitBlock(nn.Module):
    """h = rms(h + out(relu(a candidate's own state + messages of the units that hold it)))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        channels = config.num_channels
        width = config.inner_size
        self.eps = config.rms_norm_eps
        self.shape = (*config.board, config.num_symbols, channels)
        self.message_proj = Linear(channels, channels)
        self.message_bias = nn.Parameter(torch.zeros(channels))
        self.state_proj = Linear(channels, width)
        self.state_bias = nn.Parameter(torch.zeros(width))
        self.own_proj = Linear(channels, width)
        self.cell_proj = Linear(channels, width)
        self.line_proj = Linear(channels, width)
        self.box_proj = Linear(channels, width)
        self.mini_proj = Linear(channels, width)
        self.out_proj = Linear(width, channels)

    def forward(self, x_BND: Tensor, _: Rotation | None) -> Tensor:
        """Sums the candidates' messages over every unit that holds them.

        The units are the symbols of a cell and, for one symbol, the row, the column, the box,
        and the three cells (mini) that a line and a box share.
        """
        h = x_BND.view(-1, *self.shape)
        messages = _biased(self.message_proj, h, self.message_bias).relu()
        row_minis = messages.sum(COLUMN, keepdim=True)
        column_minis = messages.sum(ROW, keepdim=True)
        rows = self.mini_proj(row_minis)
        whole_rows = row_minis.sum(STACK, keepdim=True)
        rows = rows + self.line_proj(whole_rows)
        boxes = row_minis.sum(ROW, keepdim=True)
        rows += self.box_proj(boxes)
        columns = self.mini_proj(column_minis)
        whole_columns = column_minis.sum(BAND, keepdim=True)
        columns = columns + self.line_proj(whole_columns)
        inner = _biased(self.state_proj, h, self.state_bias)
        inner = inner + self.own_proj(messages)
        cells = messages.sum(SYMBOL, keepdim=True)
        inner += self.cell_proj(cells)
        inner += rows
        inner += columns
        change = self.out_proj(inner.relu_())
        return residual_norm(h, change, self.eps).view_as(x_BND)


class GridBlock(nn.Module):
    """h = rms(h + out(relu(weights of a cell and its eight neighbors)))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.board = config.board
        self.near_proj = Linear(9 * config.hidden_size, config.inner_size)
        self.near_bias = nn.Parameter(torch.zeros(config.inner_size))
        self.out_proj = Linear(config.inner_size, config.hidden_size)

    def forward(self, x_BND: Tensor, _: Rotation | None) -> Tensor:
        cells_BrcD = x_BND.unflatten(1, self.board)
        near_BrcF = _near(self.near_proj, cells_BrcD, self.near_bias)
        near_BNF = near_BrcF.flatten(1, 2)
        return residual_norm(x_BND, self.out_proj(near_BNF.relu()), self.eps)


class ColorBlock(nn.Module):
    """h = rms(h + out(relu(a color's neighborhood + messages of all colors))).

    Messages of all colors are summed over each of the nine cells, and averaged over the board.
    Messages of one color are averaged over the board, and by attention over the cells: a cell's
    content and distance determine its weight.
    """

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        channels = config.num_channels
        width = config.inner_size
        self.eps = config.rms_norm_eps
        self.num_heads = config.num_heads
        self.num_symbols = config.num_symbols
        self.shape = (*config.board, config.num_symbols, channels)
        self.message_proj = Linear(channels, channels)
        self.message_bias = nn.Parameter(torch.zeros(channels))
        self.near_proj = Linear(9 * channels, width)
        self.near_bias = nn.Parameter(torch.zeros(width))
        self.cell_proj = Linear(9 * channels, width)
        self.look_proj = Linear(channels, 2 * config.num_heads * channels)
        self.seen_proj = Linear(channels, width)
        self.board_proj = Linear(channels, width)
        self.all_proj = Linear(channels, width)
        self.out_proj = Linear(width, channels)

    def forward(self, x_BND: Tensor, rotation: Rotation) -> Tensor:
        h = x_BND.view(-1, *self.shape)
        messages = _biased(self.message_proj, h, self.message_bias).relu()
        near = self._neighborhood(h)
        cells = messages.sum(3)
        of_board = messages.mean((1, 2), keepdim=True)
        board = self.board_proj(of_board)
        of_all = of_board.mean(3, keepdim=True)
        board = board + self.all_proj(of_all)
        attended = self._attended(messages, cells, rotation)
        seen = self.seen_proj(attended).view(*h.shape[:4], -1)
        nine = _near(self.cell_proj, cells)[:, :, :, None]
        around = nine + seen + board
        known = near + around
        change = self.out_proj(known.relu())
        return residual_norm(h, change, self.eps).view_as(x_BND)

    def _neighborhood(self, h: Tensor) -> Tensor:
        """Weights of each color's nine cells [B, r, c, S, F]; every color is an image."""
        images_ArcC = h.movedim(3, 1).flatten(0, 1)
        near_ArcF = _near(self.near_proj, images_ArcC, self.near_bias)
        near_BSrcF = near_ArcF.unflatten(0, (-1, self.num_symbols))
        return near_BSrcF.movedim(1, 3)

    def _attended(self, messages: Tensor, cells: Tensor, rotation: Rotation) -> Tensor:
        """Messages of each color, gathered by attention between cells [B, N, S, C]."""
        looks = self.look_proj(cells.flatten(1, 2))
        heads = looks.unflatten(2, (2 * self.num_heads, -1)).transpose(1, 2)
        q, k = rotate(heads, rotation).chunk(2, dim=1)
        parts = messages.flatten(1, 2).unflatten(3, (self.num_heads, -1))
        values = parts.movedim(3, 1)  # [B, heads, N, S, C / heads]
        seen = F.scaled_dot_product_attention(q, k, values.flatten(3))
        seen = seen.unflatten(3, values.shape[3:])
        return seen.movedim(1, 3).flatten(3)


def _near(linear: Linear, x_ArcC: Tensor, bias: Tensor | None = None) -> Tensor:
    """Weights of each cell and its eight neighbors [A, r, c, F], with zeros beyond the edge."""
    weight = linear.weight.to(x_ArcC.dtype)
    weight_FCrc = weight.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)
    if bias is not None:
        bias = bias.to(x_ArcC.dtype)
    x_ACrc = x_ArcC.permute(0, 3, 1, 2)
    near_AFrc = F.conv2d(x_ACrc, weight_FCrc, bias, padding=1)
    return near_AFrc.permute(0, 2, 3, 1)


def _biased(linear: Linear, x: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, linear.weight.to(x.dtype), bias.to(x.dtype))


class Relational(HRM):
    """An HRM with one vector per candidate, cell or color; gradients flow through every step."""

    family = "relational"

    def _add_embedding(self) -> None:
        super()._add_embedding()
        config = self.config
        if config.puzzle_vector_size:
            part_size = config.puzzle_vector_size // config.num_symbols
            self.vector_proj = Linear(part_size, config.num_channels)

    @property
    def _block(self) -> Callable[[HRMConfig], nn.Module]:
        if self.config.has_colors:
            return ColorBlock
        if self.config.has_units:
            return UnitBlock
        return GridBlock

    def _with_vector(self, x_BTD: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        """Adds each symbol's part of the puzzle's vector to that symbol in every cell."""
        if not self.config.puzzle_vector_size:
            return x_BTD
        parts_BSE = puzzle_vector_BE.unflatten(1, (self.config.num_symbols, -1))
        vector_BD = self.vector_proj(parts_BSE).flatten(1)
        return x_BTD + vector_BD[:, None]

    def token_table(self) -> Tensor:
        """Token embeddings [V, D]. In an open cell every candidate is open.

        In a given cell one candidate is given and the others are ruled out. Fixed symbols add a
        vector of their own (rows NUM_STATES and on), so the model can tell them from other symbols.
        """
        symbols = self.config.num_symbols
        if symbols == 1:
            return self.embed_tokens
        states_PC = self.embed_tokens
        device = states_PC.device
        state_VS = torch.full((self.config.vocab_size, symbols), OPEN, device=device)
        is_given_SS = torch.eye(symbols, dtype=torch.int64, device=device)
        state_VS[-symbols:] = RULED_OUT - is_given_SS * (RULED_OUT - GIVEN)
        own_SC = F.pad(states_PC[NUM_STATES:], (0, 0, 0, symbols - self.config.num_fixed))
        chosen_VSP = F.one_hot(state_VS, NUM_STATES).to(states_PC.dtype)
        table_VSC = chosen_VSP @ states_PC[:NUM_STATES] + own_SC
        return table_VSC.flatten(1)

    def answer_matrix(self) -> Tensor:
        """Answer matrix [V, D]: a symbol's logit reads its candidate; other logits are 0."""
        symbols = self.config.num_symbols
        weight_1C = self.lm_head.weight
        if symbols == 1:
            return weight_1C
        eye_SS = torch.eye(symbols, dtype=weight_1C.dtype, device=weight_1C.device)
        matrix_SD = torch.kron(eye_SS, weight_1C)
        return F.pad(matrix_SD, (0, 0, self.config.vocab_size - symbols, 0))

    def _q_values(self, state_BND: Tensor) -> Tensor:
        """Q values [B, 2]: the minimum over all vectors, since none of them is special."""
        vectors_BMC = state_BND.reshape(len(state_BND), -1, self.config.num_channels)
        return q_values(vectors_BMC, self.q_head).amin(1)


FAMILIES: tuple[type[HRM], ...] = (HRM, TRM, Transformer, Relational)


def model_of(config: HRMConfig) -> HRM:
    """Returns a network of these sizes with fresh weights."""
    family = next(kind for kind in FAMILIES if kind.family == config.family)
    return family(config)


def num_parameters_of(config: HRMConfig) -> int:
    """The learned weights of a network of these sizes, counted on the meta device."""
    with torch.device("meta"):
        return model_of(config).num_parameters
