"""Variants of an ARC task, and its pairs on the canvas of each.

Colors 1 to 9 are exchanged, then a dihedral turn follows.

This is the order of the published builder. Turns: 0 none, 1 to 3 quarter turns counter-clockwise,
4 left-right, 5 up-down, 6 transposed, 7 left-right of turn 1.
Shapes: V variants, C = 10 colors, T turns, P pairs; E pairs of one split, S side of the canvas, K
variants of one turn, H and W the sides of one grid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm_puzzles.arc.canvas import NUM_COLORS, canvas_T, sums_by_turn_TBC
from hrm_puzzles.grid.board import mixed
from hrm_puzzles.puzzle import Grid, Int64Array, IntpArray, UInt8Array, UInt64Array

INVERSE_TURN = (0, 3, 2, 1, 4, 5, 6, 7)
NUM_TURNS = len(INVERSE_TURN)
TRANSPOSING = (1, 3, 6, 7)  # turns that exchange height and width
# Draws per wanted variant, as published. A task with few colors or symmetric grids has few
# variants.
TRIES = 5
# HRM's builder separates the parts of a name with `_`, TRM's with `|||`.
_NAME = re.compile(r"(?P<task>.+?)(?:_|\|\|\|)t(?P<turn>[0-7])(?:_|\|\|\|)(?P<colors>[0-9]{10})")

Pair = tuple[Grid, Grid]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A turn, and for each color the one that replaces it."""

    turn: int = 0
    colors: tuple[int, ...] = tuple(range(NUM_COLORS))

    def apply(self, grid: Grid) -> Grid:
        colors_C = np.array(self.colors, dtype=np.int8)
        return turned(colors_C[grid], self.turn)

    def invert(self, grid: Grid) -> Grid:
        colors_C = np.argsort(self.colors).astype(np.int8)
        return colors_C[turned(grid, INVERSE_TURN[self.turn])]

    def name(self, task: str) -> str:
        """The published name. A variant without any change has the name of its task."""
        if self == Variant():
            return task
        colors = "".join(map(str, self.colors))
        return f"{task}_t{self.turn}_{colors}"


def variant_of(name: str) -> tuple[str, Variant]:
    """The task and the variant of a name."""
    match = _NAME.fullmatch(name)
    if match is None or sorted(match["colors"]) != list("0123456789"):
        return name, Variant()
    colors = tuple(map(int, match["colors"]))
    return match["task"], Variant(turn=int(match["turn"]), colors=colors)


def turned(grid: Grid, turn: int) -> Grid:
    if turn < 4:
        return np.rot90(grid, turn)
    if turn == 4:
        return np.fliplr(grid)
    if turn == 5:
        return np.flipud(grid)
    if turn == 6:
        return grid.T
    return np.fliplr(np.rot90(grid))


def random_variant(rng: np.random.Generator) -> Variant:
    turns_V, colors_VC = _drawn(rng, 1)
    return Variant(turn=int(turns_V[0]), colors=tuple(colors_VC[0].tolist()))


def variants_of(
    pairs: Sequence[Pair],
    count: int,
    rng: np.random.Generator,
    *,
    keep_colors: bool = False,
) -> list[Variant]:
    """The unchanged task, and up to `count` random variants.

    All of them differ from the task and from each other. With `keep_colors` the variants are the
    other turns in order.
    """
    if keep_colors:
        turns_V = np.arange(1, NUM_TURNS)
        colors_VC = np.tile(np.arange(NUM_COLORS), (NUM_TURNS - 1, 1))
    else:
        turns_V, colors_VC = _drawn(rng, TRIES * count)
    turns_V = np.concatenate([[0], turns_V])
    colors_VC = np.concatenate([np.arange(NUM_COLORS)[None], colors_VC])
    hashes_V = _hashes_V(pairs, turns_V, colors_VC)
    _, first = np.unique(hashes_V, return_index=True)
    variants: list[Variant] = []
    for index in np.sort(first)[: count + 1]:
        colors = tuple(colors_VC[index].tolist())
        variants.append(Variant(turn=int(turns_V[index]), colors=colors))
    return variants


def _hashes_V(
    pairs: Sequence[Pair],
    turns_V: Int64Array,
    colors_VC: Int64Array,
) -> UInt64Array:
    """A hash of the pairs under each variant.

    The sums over cells are computed once for each turn and color. So a thousand variants cost
    hardly more than eight.
    """
    side = max(max(question.shape + answer.shape) for question, answer in pairs)
    questions_PT = np.stack([canvas_T(question, side) for question, _ in pairs])
    answers_PT = np.stack([canvas_T(answer, side) for _, answer in pairs])
    sums_TPC = sums_by_turn_TBC(questions_PT, answers_PT, side)
    key_C = mixed(np.arange(NUM_COLORS, dtype=np.uint64), salt=1)
    keys_VC = key_C[colors_VC]
    hashes_V = np.zeros(len(turns_V), dtype=np.uint64)
    for number in range(len(pairs)):
        sums_VC = sums_TPC[turns_V, number]
        hashes_V += mixed((sums_VC * keys_VC).sum(axis=1))
    return hashes_V


def _drawn(rng: np.random.Generator, count: int) -> tuple[Int64Array, Int64Array]:
    """Random turns, and random orders of the colors 1 to 9 after color 0."""
    turns_V = rng.integers(NUM_TURNS, size=count)
    random_V9 = rng.random((count, NUM_COLORS - 1))
    colors_VC = np.zeros((count, NUM_COLORS), dtype=np.int64)
    colors_VC[:, 1:] = np.argsort(random_V9, axis=1) + 1
    return turns_V, colors_VC


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
    for v, variant in enumerate(variants):
        for e, (question, answer) in enumerate(pairs):
            top, left = origins_VE2[v, e].tolist()
            inputs_VET[v, e] = canvas_T(variant.apply(question), side, (top, left))
            labels_VET[v, e] = canvas_T(variant.apply(answer), side, (top, left))
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
