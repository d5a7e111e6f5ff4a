"""Draw the pairs of a task on the canvas of each of its variants.

Shapes: V variants of a task, E its examples of one split, S side of the canvas, K variants of one
turn, H and W the sides of one grid, C = 10 colors.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import END, FIRST_COLOR
from hrm_puzzles.arc.variants import NUM_TURNS, TRANSPOSING, Pair, Variant, turned
from hrm_puzzles.puzzle import Grid

UInt8Array = NDArray[np.uint8]
IntpArray = NDArray[np.intp]


def drawn_VET(
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    side: int,
    rng: np.random.Generator | None,
) -> tuple[UInt8Array, UInt8Array]:
    """Questions and answers of every variant.

    With a generator, each pair is at a random place where both grids fit. Otherwise it is in the
    upper left corner.
    """
    shape = (len(variants), len(pairs), side * side)
    inputs_VET = np.empty(shape, dtype=np.uint8)
    labels_VET = np.empty(shape, dtype=np.uint8)
    if rng is None:
        origins_VE2 = np.zeros((len(variants), len(pairs), 2), dtype=np.intp)
    else:
        origins_VE2 = _origins_VE2(pairs, variants, side, rng)
    for number, (question, answer) in enumerate(pairs):
        origins_V2 = origins_VE2[:, number]
        inputs_VET[:, number] = _drawn_VT(question, variants, side, origins_V2)
        labels_VET[:, number] = _drawn_VT(answer, variants, side, origins_V2)
    return inputs_VET, labels_VET


def _origins_VE2(
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    side: int,
    rng: np.random.Generator,
) -> IntpArray:
    """Random places where both grids of a pair fit.

    As published, one pair of each variant stays in the corner.
    """
    extents_E2 = np.array([np.maximum(question.shape, answer.shape) for question, answer in pairs])
    turned_extents_E2 = extents_E2[:, ::-1]
    is_turned_V = np.isin([variant.turn for variant in variants], TRANSPOSING)
    extents_VE2 = np.where(is_turned_V[:, None, None], turned_extents_E2, extents_E2)
    origins_VE2 = rng.integers(side - extents_VE2 + 1)
    kept_V = rng.integers(len(pairs), size=len(variants))
    origins_VE2[np.arange(len(variants)), kept_V] = 0
    return origins_VE2


def _drawn_VT(
    grid: Grid,
    variants: Sequence[Variant],
    side: int,
    origins_V2: IntpArray,
) -> UInt8Array:
    """Draw one grid on the canvas of each variant, all variants of a turn at once."""
    turn_V = np.array([variant.turn for variant in variants])
    colors_VC = np.array([variant.colors for variant in variants], dtype=np.uint8)
    tokens_VC = colors_VC + np.uint8(FIRST_COLOR)
    # One row and one column more than the canvas, for end marks that fall off it.
    canvas_VSS = np.zeros((len(variants), side + 1, side + 1), dtype=np.uint8)
    for turn in range(NUM_TURNS):
        chosen_K = np.flatnonzero(turn_V == turn)
        cells_KHW = tokens_VC[chosen_K][:, turned(grid, turn)]
        _, height, width = cells_KHW.shape
        top_K1 = origins_V2[chosen_K, :1]
        left_K1 = origins_V2[chosen_K, 1:]
        row_KH = top_K1 + np.arange(height)
        col_KW = left_K1 + np.arange(width)
        chosen_K1 = chosen_K[:, None]
        canvas_VSS[chosen_K1, row_KH, left_K1 + width] = END
        canvas_VSS[chosen_K1, top_K1 + height, col_KW] = END
        row_KH1 = row_KH[:, :, None]
        col_K1W = col_KW[:, None, :]
        canvas_VSS[chosen_K1[:, None], row_KH1, col_K1W] = cells_KHW
    return canvas_VSS[:, :side, :side].reshape(len(variants), side * side)
