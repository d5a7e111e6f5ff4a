"""ARC grids on the square canvas of the published data, the variants of a task, and a hash they all share.

Tokens: 0 pad, 1 end mark, colour c at c + 2. End marks are the row just below the grid and the column just right of it,
as far as the canvas reaches; their corner is pad. A grid's origin is the canvas cell of its first cell.
A variant is made as the published builder does: colours 1 to 9 exchanged, then a dihedral turn. Turns: 0 none, 1 to 3
quarter turns counter-clockwise, 4 left-right, 5 up-down, 6 transposed, 7 left-right of turn 1.
Shapes: B batch, V variants, S side of the canvas, T = S * S, C = 10 colours, H and W the sides of one grid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hrm_puzzles.grid.board import BoolArray, Int32Array, UInt64Array, mixed
from hrm_puzzles.puzzle import Grid, IntArray

PAD = 0
END = 1
FIRST_COLOUR = 2
NUM_COLOURS = 10
VOCAB = FIRST_COLOUR + NUM_COLOURS

INVERSE_TURN = (0, 3, 2, 1, 4, 5, 6, 7)
NUM_TURNS = len(INVERSE_TURN)
TRANSPOSING = (1, 3, 6, 7)  # turns that exchange height and width
FLIPS_OF_TURN = (
    0,
    6,
    3,
    5,
    2,
    1,
    4,
    7,
)  # each turn as rows reversed (1), columns reversed (2), then transposed (4)
TRIES = 5  # draws for each variant wanted, as published: few colours and symmetric grids have few variants
_NAME = re.compile(r"(?P<task>.+?)(?:_|\|\|\|)t(?P<turn>[0-7])(?:_|\|\|\|)(?P<colours>[0-9]{10})")

IntpArray = np.typing.NDArray[np.intp]
Pair = tuple[Grid, Grid]


def canvas_T(grid: Grid, side: int, origin: tuple[int, int] = (0, 0)) -> Int32Array:
    """A grid on its canvas, [T]; the grid must fit there."""
    (top, left), (height, width) = origin, grid.shape
    canvas = np.full(
        (side + 1, side + 1), PAD, dtype=np.int32
    )  # one more than the canvas, where marks may fall
    if grid.size:
        canvas[top : top + height, left + width] = END
        canvas[top + height, left : left + width] = END
        canvas[top : top + height, left : left + width] = grid.astype(np.int32) + FIRST_COLOUR
    return canvas[:side, :side].reshape(-1)


def grid_at(tokens_T: IntArray, side: int, origin: tuple[int, int] = (0, 0)) -> Grid:
    """The largest box of colours at the origin, as published scoring crops: of equals that of fewest rows, or 0 x 0."""
    tokens = np.asarray(tokens_T).reshape(side, side)[origin[0] :, origin[1] :]
    num_in_row_S = np.cumprod(is_colour(tokens), axis=1, dtype=np.int64).sum(axis=1)
    width_S = np.minimum.accumulate(num_in_row_S)  # of the box that ends in this row
    area_S = width_S * np.arange(1, len(width_S) + 1)
    last = int(area_S.argmax())
    height = last + 1 if area_S[last] else 0
    return (tokens[:height, : width_S[last]] - FIRST_COLOUR).astype(np.int8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """The smallest box around the colours of each canvas, [B] each; the whole canvas if there is no colour."""

    top_B: IntpArray
    left_B: IntpArray
    height_B: IntpArray
    width_B: IntpArray


def boxes_of_B(tokens_BT: IntArray, side: int) -> Boxes:
    is_colour_BSS = is_colour(np.asarray(tokens_BT)).reshape(-1, side, side)
    top_B, height_B = _extent(np.any(is_colour_BSS, axis=2))
    left_B, width_B = _extent(np.any(is_colour_BSS, axis=1))
    return Boxes(top_B=top_B, left_B=left_B, height_B=height_B, width_B=width_B)


def moved_BT(
    tokens_BT: IntArray, boxes: Boxes, top_B: IntpArray, left_B: IntpArray, side: int
) -> Int32Array:
    """The grids in `boxes` with their first cells at (top, left), amid pad or, in labels, what the loss skips."""
    row_BS, col_BS = (
        np.arange(side) - first_B[:, None] for first_B in (top_B, left_B)
    )  # counted from the first cell
    height_B1, width_B1 = boxes.height_B[:, None], boxes.width_B[:, None]
    on_row_BS, on_col_BS = (row_BS >= 0) & (row_BS < height_B1), (col_BS >= 0) & (col_BS < width_B1)
    is_below_BSS = (row_BS == height_B1)[:, :, None] & on_col_BS[:, None, :]
    is_beside_BSS = on_row_BS[:, :, None] & (col_BS == width_B1)[:, None, :]
    pad_B11 = np.minimum(np.asarray(tokens_BT).min(axis=1), PAD)[:, None, None]
    around_BSS = np.where(is_below_BSS | is_beside_BSS, np.int32(END), pad_B11)
    from_row_BS, from_col_BS = row_BS + boxes.top_B[:, None], col_BS + boxes.left_B[:, None]
    source_BSS = (
        np.clip(from_row_BS, 0, side - 1)[:, :, None] * side
        + np.clip(from_col_BS, 0, side - 1)[:, None, :]
    )
    copied_BSS = np.take_along_axis(tokens_BT, source_BSS.reshape(-1, side * side), axis=1).reshape(
        -1, side, side
    )
    moved_BSS = np.where(on_row_BS[:, :, None] & on_col_BS[:, None, :], copied_BSS, around_BSS)
    return moved_BSS.reshape(-1, side * side).astype(np.int32)


def is_colour(tokens: IntArray) -> BoolArray:
    return (tokens >= FIRST_COLOUR) & (tokens < VOCAB)


def _extent(has_colour_BS: BoolArray) -> tuple[IntpArray, IntpArray]:
    """First line with a colour, and the number of lines up to the last one."""
    first_B = has_colour_BS.argmax(axis=1)
    return first_B, has_colour_BS.shape[1] - has_colour_BS[:, ::-1].argmax(axis=1) - first_B


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A turn, and for each colour the one that takes its place."""

    turn: int = 0
    colours: tuple[int, ...] = tuple(range(NUM_COLOURS))

    def apply(self, grid: Grid) -> Grid:
        return turned(np.array(self.colours, dtype=np.int8)[grid], self.turn)

    def invert(self, grid: Grid) -> Grid:
        return np.argsort(self.colours).astype(np.int8)[turned(grid, INVERSE_TURN[self.turn])]

    def name(self, task: str) -> str:
        """The published name; that of the task itself if nothing is changed."""
        if self == Variant():
            return task
        return f"{task}_t{self.turn}_{''.join(map(str, self.colours))}"


def variant_of(name: str) -> tuple[str, Variant]:
    """Task and variant behind a name, written by HRM's builder (`_`) or TRM's (`|||`)."""
    match = _NAME.fullmatch(name)
    if match is None or sorted(match["colours"]) != list("0123456789"):
        return name, Variant()
    return match["task"], Variant(
        turn=int(match["turn"]), colours=tuple(map(int, match["colours"]))
    )


def turned(grid: Grid, turn: int) -> Grid:
    if turn < 4:
        return np.rot90(grid, turn)
    return (np.fliplr(grid), np.flipud(grid), grid.T, np.fliplr(np.rot90(grid)))[turn - 4]


def random_variant(rng: np.random.Generator) -> Variant:
    turns_V, colours_VC = _drawn(rng, 1)
    return Variant(turn=int(turns_V[0]), colours=tuple(colours_VC[0].tolist()))


def variants_of(
    pairs: Sequence[Pair], count: int, rng: np.random.Generator, *, keep_colours: bool = False
) -> list[Variant]:
    """The task as it is, and up to `count` random variants of it that differ from it and from each other.

    Where they keep their colours, they are the other turns in order, as far as they differ.
    """
    turns_V, colours_VC = _drawn(rng, TRIES * count)
    if keep_colours:
        turns_V, colours_VC = (
            np.arange(1, NUM_TURNS),
            np.tile(np.arange(NUM_COLOURS), (NUM_TURNS - 1, 1)),
        )
    turns_V = np.concatenate([[0], turns_V])
    colours_VC = np.concatenate([np.arange(NUM_COLOURS)[None], colours_VC])
    side = max(length for pair in pairs for grid in pair for length in grid.shape)
    rows = (
        np.stack([canvas_T(grid, side) for grid in grids]) for grids in zip(*pairs, strict=True)
    )
    key_C = mixed(np.arange(NUM_COLOURS, dtype=np.uint64), salt=1)
    # Place x colour, summed over cells once for each turn and colour: a thousand variants cost hardly more than eight.
    sums_PTC = _sums_TBC(next(rows), next(rows), side).swapaxes(0, 1)
    hashes_V = sum(
        (mixed((sums_TC[turns_V] * key_C[colours_VC]).sum(axis=1)) for sums_TC in sums_PTC),
        np.uint64(0),
    )
    _, first = np.unique(hashes_V, return_index=True)
    chosen = np.sort(first)[: count + 1]
    return [
        Variant(turn=turn, colours=tuple(colours))
        for turn, colours in zip(turns_V[chosen].tolist(), colours_VC[chosen].tolist(), strict=True)
    ]


def _drawn(
    rng: np.random.Generator, count: int
) -> tuple[np.typing.NDArray[np.int64], np.typing.NDArray[np.int64]]:
    turns_V = rng.integers(NUM_TURNS, size=count)
    others_VC = np.argsort(rng.random((count, NUM_COLOURS - 1)), axis=1) + 1
    return turns_V, np.concatenate([np.zeros((count, 1), dtype=np.int64), others_VC], axis=1)


def equivalence_hash_B(inputs_BT: IntArray, labels_BT: IntArray, side: int) -> UInt64Array:
    """The same number for all variants of a pair at any place, uint64 [B].

    For each of the eight turns and each colour, the numbers of the colour's places in question and answer are added up;
    sums over colours and turns follow. The reverse is not proven: two pairs may share a number, which errs on the safe
    side.
    """
    by_colour_TBC = mixed(_sums_TBC(inputs_BT, labels_BT, side))
    by_turn_TB = mixed(by_colour_TBC[..., 0], salt=1) + by_colour_TBC[..., 1:].sum(axis=2)
    return mixed(mixed(by_turn_TB, salt=2).sum(axis=0))


def _sums_TBC(inputs_BT: IntArray, labels_BT: IntArray, side: int) -> UInt64Array:
    """For each turn, pair and colour the sum of the numbers of its places once turned; K cells hold a colour."""
    sums_TBC = np.zeros((NUM_TURNS, len(inputs_BT), NUM_COLOURS))
    for tokens_BT, numbers in zip((inputs_BT, labels_BT), _place_numbers(), strict=True):
        boxes = boxes_of_B(tokens_BT, side)
        canvas_K, place_K = np.nonzero(is_colour(np.asarray(tokens_BT)))
        row_K, col_K = (
            place_K // side - boxes.top_B[canvas_K],
            place_K % side - boxes.left_B[canvas_K],
        )
        last_row_K, last_col_K = boxes.height_B[canvas_K] - 1, boxes.width_B[canvas_K] - 1
        bin_K = canvas_K * NUM_COLOURS + np.asarray(tokens_BT)[canvas_K, place_K] - FIRST_COLOUR
        for turn, flips in enumerate(FLIPS_OF_TURN):
            up_K = last_row_K - row_K if flips & 1 else row_K
            across_K = last_col_K - col_K if flips & 2 else col_K
            weights_K = numbers[(across_K, up_K) if flips & 4 else (up_K, across_K)]
            sums = np.bincount(bin_K, weights=weights_K, minlength=len(tokens_BT) * NUM_COLOURS)
            sums_TBC[turn] += sums.reshape(-1, NUM_COLOURS)
    return sums_TBC.astype(np.uint64)  # exact, since sums stay below 2 ** 53


@cache
def _place_numbers() -> np.typing.NDArray[np.float64]:
    """A random number below 2 ** 42 for each place of a question [0] and of an answer [1], up to 64 x 64."""
    places = np.arange(64 * 64, dtype=np.uint64)
    numbers = np.stack([mixed(places, salt=3 + part) >> np.uint64(22) for part in range(2)])
    return numbers.astype(np.float64).reshape(2, 64, 64)
