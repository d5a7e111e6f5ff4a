"""The variants of an ARC task as the published builder makes them: colours 1 to 9 exchanged, then a dihedral turn.

Turns: 0 none, 1 to 3 quarter turns against the clock, 4 left-right, 5 up-down, 6 transposed, 7 left-right of turn 1.
Shapes: V variants, C = 10 colours, P pairs of a task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import NUM_COLOURS
from hrm_puzzles.grid.scatter import UInt64Array, mixed
from hrm_puzzles.puzzle import Grid

INVERSE_TURN = (0, 3, 2, 1, 4, 5, 6, 7)
NUM_TURNS = len(INVERSE_TURN)
TRANSPOSING = (1, 3, 6, 7)  # turns that exchange height and width
TRIES = 5  # draws for each variant wanted, as published: few colours and symmetric grids have few variants
_NAME = re.compile(r"(?P<task>.+?)(?:_|\|\|\|)t(?P<turn>[0-7])(?:_|\|\|\|)(?P<colours>[0-9]{10})")

Pair = tuple[Grid, Grid]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A turn, and for each colour the one that takes its place."""

    turn: int = 0
    colours: tuple[int, ...] = tuple(range(NUM_COLOURS))

    def apply(self, grid: Grid) -> Grid:
        return turned(np.array(self.colours, dtype=np.int8)[grid], self.turn)

    def invert(self, grid: Grid) -> Grid:
        """Undo `apply` exactly."""
        return np.argsort(self.colours).astype(np.int8)[turned(grid, INVERSE_TURN[self.turn])]

    def name(self, task: str) -> str:
        """The published name; that of the task itself where nothing is changed."""
        if self == Variant():
            return task
        return f"{task}_t{self.turn}_{''.join(map(str, self.colours))}"


def variant_of(name: str) -> tuple[str, Variant]:
    """Task and variant behind a name, written by HRM's builder (`_`) or TRM's (`|||`)."""
    match = _NAME.fullmatch(name)
    if match is None or sorted(match["colours"]) != list("0123456789"):
        return name, Variant()
    return match["task"], Variant(turn=int(match["turn"]), colours=tuple(map(int, match["colours"])))


def turned(grid: Grid, turn: int) -> Grid:
    if turn < 4:
        return np.rot90(grid, turn)
    return (np.fliplr(grid), np.flipud(grid), grid.T, np.fliplr(np.rot90(grid)))[turn - 4]


def random_variant(rng: np.random.Generator) -> Variant:
    turns_V, colours_VC = _drawn(rng, 1)
    return Variant(turn=int(turns_V[0]), colours=tuple(colours_VC[0].tolist()))


def variants_of(pairs: Sequence[Pair], count: int, rng: np.random.Generator) -> list[Variant]:
    """The task as it is, and up to `count` random variants of it that differ from it and from each other."""
    turns_V, colours_VC = _drawn(rng, TRIES * count)
    turns_V = np.concatenate([[0], turns_V])
    colours_VC = np.concatenate([np.arange(NUM_COLOURS)[None], colours_VC])
    _, first = np.unique(_hashes_V(pairs, turns_V, colours_VC), return_index=True)
    chosen = np.sort(first)[: count + 1]
    return [
        Variant(turn=turn, colours=tuple(colours))
        for turn, colours in zip(turns_V[chosen].tolist(), colours_VC[chosen].tolist(), strict=True)
    ]


def _drawn(rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    turns_V = rng.integers(NUM_TURNS, size=count)
    others_VC = np.argsort(rng.random((count, NUM_COLOURS - 1)), axis=1) + 1
    return turns_V, np.concatenate([np.zeros((count, 1), dtype=np.int64), others_VC], axis=1)


def _hashes_V(pairs: Sequence[Pair], turns_V: NDArray[np.int64], colours_VC: NDArray[np.int64]) -> UInt64Array:
    """A number for what each variant makes of the pairs, whatever their order: the sum over cells of place x colour.

    That sum is taken once for each turn and colour, so a thousand variants cost hardly more than eight.
    """
    key_C = mixed(np.arange(NUM_COLOURS, dtype=np.uint64), salt=1)
    hashes_V = np.zeros(len(turns_V), dtype=np.uint64)
    for pair in pairs:
        sums_TC = np.stack([_colour_sums_C(pair, turn) for turn in range(NUM_TURNS)])
        hashes_V += mixed((sums_TC[turns_V] * key_C[colours_VC]).sum(axis=1))
    return hashes_V


def _colour_sums_C(pair: Pair, turn: int) -> UInt64Array:
    """For each colour the sum of the numbers of its places, once the pair is turned."""
    sums_C = np.zeros(NUM_COLOURS, dtype=np.uint64)
    for grid, places in zip(pair, _places(), strict=True):
        image = turned(grid, turn)
        np.add.at(sums_C, image, places[: image.shape[0], : image.shape[1]])
    return sums_C


@cache
def _places() -> tuple[UInt64Array, UInt64Array]:
    """A random number for each place of a question and of an answer, on any canvas up to 64 x 64."""
    numbers = mixed(np.arange(2 * 64 * 64, dtype=np.uint64), salt=2).reshape(2, 64, 64)
    return numbers[0], numbers[1]
