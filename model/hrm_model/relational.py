"""Blocks made of a puzzle's own relations: `blocks: relational`. Read `UnitBlock.forward` and `GridBlock.forward`.

Every weight is shared by all places that the puzzle cannot tell apart, so no symmetry has to be learnt. A board of
units (Sudoku) has one vector for each candidate, a symbol in a cell: relabelling, exchanging rows, columns, bands or
stacks, and transposition move the state and change nothing else. A plain grid has one vector for each cell, and weights
for its eight neighbours that do not know the board's size; where cells hold colours that can be exchanged (ARC), one
for each colour and cell. What tells colours apart there is the task's vector, a part of it for each.

Shapes: B batch, N positions (cells), S symbols, C channels of a vector, D = S * C hidden, F inner width, V vocabulary;
a board of units is bands b, rows of a band r, stacks s, columns of a stack c.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.layers import Block, Linear, MixerBlock, Rotation, rotate
from hrm_model.ops import residual_norm

BAND, ROW, STACK, COLUMN, SYMBOL = 1, 2, 3, 4, 5
"""Axes of a state seen as candidates [B, b, r, s, c, S, C]."""


class UnitBlock(nn.Module):
    """h = rms(h + out(relu(what a candidate knows and what the units around it say)))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        channels, width = config.num_channels, config.inner_size
        self.eps, self.shape = config.rms_norm_eps, (*config.board, config.num_symbols, channels)
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

    def forward(self, x_BND: Tensor, *_: Rotation | int | None) -> Tensor:
        """Messages m of the candidates are summed over every unit that holds them: the symbols of a cell, and of one
        symbol the row, the column, the box and the three cells that a line and a box share.
        """
        h = x_BND.view(-1, *self.shape)
        m = _biased(self.message_proj, h, self.message_bias).relu()
        across, down = m.sum(COLUMN, keepdim=True), m.sum(ROW, keepdim=True)
        rows = self.mini_proj(across) + self.line_proj(across.sum(STACK, keepdim=True))
        rows += self.box_proj(across.sum(ROW, keepdim=True))
        columns = self.mini_proj(down) + self.line_proj(down.sum(BAND, keepdim=True))
        heard = _biased(self.state_proj, h, self.state_bias) + self.own_proj(m)
        for part in (self.cell_proj(m.sum(SYMBOL, keepdim=True)), rows, columns):
            heard += part
        return residual_norm(h, self.out_proj(heard.relu_()), self.eps).view_as(x_BND)


class GridBlock(nn.Module):
    """h = rms(h + out(relu(weights for a cell and its eight neighbours)))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps, self.board = config.rms_norm_eps, config.board
        self.near_proj = Linear(9 * config.hidden_size, config.inner_size)
        self.near_bias = nn.Parameter(torch.zeros(config.inner_size))
        self.out_proj = Linear(config.inner_size, config.hidden_size)

    def forward(self, x_BND: Tensor, *_: Rotation | int | None) -> Tensor:
        near_BrcF = _near(self.near_proj, x_BND.unflatten(1, self.board), self.near_bias)
        return residual_norm(x_BND, self.out_proj(near_BrcF.flatten(1, 2).relu()), self.eps)


class ColourBlock(nn.Module):
    """h = rms(h + out(relu(what a colour of a cell and its neighbours know, and what the others say))).

    Messages m of all colours are summed over each of the nine cells, and averaged over the board. Those of one colour
    are averaged over the board, and by attention over the cells that this one looks at (what they hold, how far off).
    """

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        channels, width = config.num_channels, config.inner_size
        self.eps, self.num_heads = config.rms_norm_eps, config.num_heads
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

    def forward(self, x_BND: Tensor, rotation: Rotation, *_: int | None) -> Tensor:
        h = x_BND.view(-1, *self.shape)
        m = _biased(self.message_proj, h, self.message_bias).relu()
        by_colour = h.movedim(3, 1).flatten(0, 1)
        near = _near(self.near_proj, by_colour, self.near_bias).unflatten(0, (-1, self.shape[2])).movedim(1, 3)
        cell, of_board = m.sum(3), m.mean((1, 2), keepdim=True)
        said = self.board_proj(of_board) + self.all_proj(of_board.mean(3, keepdim=True))
        looks = self.look_proj(cell.flatten(1, 2)).unflatten(2, (2 * self.num_heads, -1)).transpose(1, 2)
        q, k = rotate(looks, rotation).chunk(2, dim=1)
        values = m.flatten(1, 2).unflatten(3, (self.num_heads, -1)).movedim(3, 1)  # [B, H, N, S, C / H]
        seen = F.scaled_dot_product_attention(q, k, values.flatten(3)).unflatten(3, values.shape[3:])
        seen = self.seen_proj(seen.movedim(1, 3).flatten(3)).view(*h.shape[:4], -1)
        said = _near(self.cell_proj, cell)[:, :, :, None] + seen + said
        return residual_norm(h, self.out_proj((near + said).relu()), self.eps).view_as(x_BND)


def _near(linear: Linear, x_ArcC: Tensor, bias: Tensor | None = None) -> Tensor:
    """Of each cell and its eight neighbours [A, r, c, F]; cells beyond the edge are zeros."""
    x, weight = linear.operands(x_ArcC)
    weight_FCrc = weight.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)
    told = None if bias is None else bias.to(x.dtype)
    return F.conv2d(x.permute(0, 3, 1, 2), weight_FCrc, told, padding=1).permute(0, 2, 3, 1)


def _biased(linear: Linear, x: Tensor, bias: Tensor) -> Tensor:
    return F.linear(*linear.operands(x), bias.to(x.dtype))


def block_of(config: HRMConfig) -> type[nn.Module]:
    if config.blocks != "relational":
        return Block if config.blocks == "attention" else MixerBlock
    return ColourBlock if config.has_colours else UnitBlock if len(config.board) == 4 else GridBlock


def table_of_symbols(parts_PC: Tensor, config: HRMConfig) -> Tensor:
    """Token embeddings [V, D]: each candidate of an open cell is open, of a given one it is the given or ruled out.

    Fixed symbols add a vector of their own (the fourth and on), so that they are no candidates like the others.
    """
    part_VS = torch.zeros(config.vocab_size, config.num_symbols, dtype=torch.int64, device=parts_PC.device)
    part_VS[-config.num_symbols :] = 2 - torch.eye(config.num_symbols, dtype=torch.int64, device=parts_PC.device)
    own_SC = F.pad(parts_PC[3:], (0, 0, 0, config.num_symbols - config.num_fixed))
    return (F.one_hot(part_VS, 3).to(parts_PC.dtype) @ parts_PC[:3] + own_SC).flatten(1)


def matrix_of_symbols(weight_1C: Tensor, config: HRMConfig) -> Tensor:
    """Answer matrix [V, D]: the logit of a symbol is read from its own candidate, that of any other token is 0."""
    eye_SS = torch.eye(config.num_symbols, dtype=weight_1C.dtype, device=weight_1C.device)
    return F.pad(torch.kron(eye_SS, weight_1C), (0, 0, config.vocab_size - config.num_symbols, 0))
