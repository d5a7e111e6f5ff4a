"""Many variants of a task's pairs drawn onto canvases at once.

Shapes: V variants, E pairs, S side of the canvas, T = S * S, H and W the sides of one grid, C = 10 colours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import END, FIRST_COLOUR
from hrm_puzzles.arc.variants import NUM_TURNS, TRANSPOSING, Pair, Variant, turned
from hrm_puzzles.puzzle import Grid

UInt8Array = NDArray[np.uint8]
IntpArray = NDArray[np.intp]


def drawn_VET(
    pairs: Sequence[Pair], variants: Sequence[Variant], side: int, rng: np.random.Generator | None
) -> tuple[UInt8Array, UInt8Array]:
    """Questions and answers of every variant; with a generator each pair at a random place where both grids fit.

    As published, one random pair of each variant keeps its place in the upper left corner.
    """
    origins_VE2 = np.zeros((len(variants), len(pairs), 2), dtype=np.intp)
    if rng is not None:
        origins_VE2 = _origins_VE2(pairs, variants, side, rng)
    inputs_VET, labels_VET = (np.empty((len(variants), len(pairs), side * side), dtype=np.uint8) for _ in range(2))
    for number, (question, answer) in enumerate(pairs):
        origins_V2 = origins_VE2[:, number]
        inputs_VET[:, number] = _drawn_VT(question, variants, side, origins_V2)
        labels_VET[:, number] = _drawn_VT(answer, variants, side, origins_V2)
    return inputs_VET, labels_VET


def _origins_VE2(pairs: Sequence[Pair], variants: Sequence[Variant], side: int, rng: np.random.Generator) -> IntpArray:
    extents_E2 = np.array([np.maximum(question.shape, answer.shape) for question, answer in pairs])
    is_turned_V = np.isin([variant.turn for variant in variants], TRANSPOSING)
    extents_VE2 = np.where(is_turned_V[:, None, None], extents_E2[:, ::-1], extents_E2)
    origins_VE2 = rng.integers(side - extents_VE2 + 1)
    kept_V = rng.integers(len(pairs), size=len(variants))
    origins_VE2[np.arange(len(variants)), kept_V] = 0
    return origins_VE2


def _drawn_VT(grid: Grid, variants: Sequence[Variant], side: int, origins_V2: IntpArray) -> UInt8Array:
    turn_V = np.array([variant.turn for variant in variants])
    tokens_VC = np.array([variant.colours for variant in variants], dtype=np.uint8) + np.uint8(FIRST_COLOUR)
    canvas_VSS = np.zeros((len(variants), side + 1, side + 1), dtype=np.uint8)  # one more, where marks may fall
    for turn in range(NUM_TURNS):
        chosen = np.flatnonzero(turn_V == turn)
        _draw(canvas_VSS, chosen, tokens_VC[chosen][:, turned(grid, turn)], origins_V2[chosen])
    return canvas_VSS[:, :side, :side].reshape(len(variants), side * side)


def _draw(canvas_VSS: UInt8Array, chosen: IntpArray, cells_VHW: UInt8Array, origins_V2: IntpArray) -> None:
    """Put cells and their end marks onto the chosen canvases."""
    _, height, width = cells_VHW.shape
    row_VH, col_VW = origins_V2[:, :1] + np.arange(height), origins_V2[:, 1:] + np.arange(width)
    which_V1 = chosen[:, None]
    canvas_VSS[which_V1, row_VH, origins_V2[:, 1:] + width] = END
    canvas_VSS[which_V1, origins_V2[:, :1] + height, col_VW] = END
    canvas_VSS[which_V1[:, :, None], row_VH[:, :, None], col_VW[:, None, :]] = cells_VHW
