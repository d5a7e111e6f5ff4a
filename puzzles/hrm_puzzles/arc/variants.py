"""Variants of an ARC task, and its pairs on the canvas of each.

Colors 1 to 9 are exchanged, then a dihedral turn follows.

This is the order of the published builder. Turns: 0 none, 1 to 3 quarter turns counter-clockwise,
4 left-right, 5 up-down, 6 transposed, 7 left-right of turn 1.
Shapes: V variants, E pairs of one split, T cells of the canvas.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hrm_puzzles.arc.canvas import NUM_COLORS, canvas_T
from hrm_puzzles.puzzle import Grid, IntpArray, UInt8Array

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
    return next(_drawn(rng, 1))


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
    drawn = _drawn(rng, TRIES * count)
    if keep_colors:
        drawn = (Variant(turn=turn) for turn in range(1, NUM_TURNS))
    found: dict[tuple[bytes, ...], Variant] = {}
    for variant in chain([Variant()], drawn):
        images: list[bytes] = []
        for pair in pairs:
            question, answer = map(variant.apply, pair)
            shapes = bytes(question.shape + answer.shape)
            images.append(shapes + question.tobytes() + answer.tobytes())
        found.setdefault(tuple(sorted(images)), variant)
        if len(found) > count:
            break
    return list(found.values())


def _drawn(rng: np.random.Generator, count: int) -> Iterator[Variant]:
    """Random turns, and random orders of the colors 1 to 9 after color 0."""
    turns_V = rng.integers(NUM_TURNS, size=count)
    random_V9 = rng.random((count, NUM_COLORS - 1))
    colors_V9 = np.argsort(random_V9, axis=1) + 1
    for turn, colors in zip(turns_V.tolist(), colors_V9.tolist(), strict=True):
        yield Variant(turn=turn, colors=(0, *colors))


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
