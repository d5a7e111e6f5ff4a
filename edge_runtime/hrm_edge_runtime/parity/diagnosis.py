"""Where a gate breaks, look for two faults that leave a clear mark: a wrong row of the puzzle table, a lost carry.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Float32
from hrm_edge_runtime.parity.judging import Break
from hrm_edge_runtime.parity.walk import Side
from hrm_puzzles.data.held_out import Question, Questions

MANY_TIMES = 4
"""Another row is named where it brings the candidate so many times nearer to the reference."""
SAME = 1e-5
"""One engine on the same puzzle and segment repeats itself to rounding."""
MOST_ROWS = 1024


def reasons_of(first: Break, reference: Side, candidate: Side, questions: Questions, bundle: Bundle) -> list[str]:
    """What explains the first break, in a sentence each; nothing where neither fault left its mark."""
    if first.segment is None or first.puzzle is None:
        return []
    asked = questions[first.puzzle]
    if first.segment > 1:
        return _begun_anew(candidate, asked, first.segment)
    return _other_row(reference, candidate, asked, bundle.identifiers)


def _other_row(reference: Side, candidate: Side, asked: Question, names: tuple[str, ...]) -> list[str]:
    """The row of the puzzle table with which the candidate would agree, among the nearest ones."""
    (expected_TV,) = _trace(reference, asked, 1)
    (found_TV,) = _trace(candidate, asked, 1)
    drift_of = {row: _drift(logits_TV, expected_TV) for row, logits_TV in _with_other_rows(candidate, asked)}
    best = min(drift_of, key=drift_of.__getitem__, default=None)
    if best is None or MANY_TIMES * drift_of[best] > _drift(found_TV, expected_TV):
        return []
    own = asked.puzzle_id
    rows = f"row {best} of the puzzle table ({names[best]}) instead of row {own} ({names[own]})"
    return [f"given {rows} the candidate agrees: the two sides do not read the same row"]


def _begun_anew(candidate: Side, asked: Question, segment: int) -> list[str]:
    """A segment that says what segment 1 said was given no carry."""
    traced = _trace(candidate, asked, segment)
    if _drift(traced[-1], traced[0]) > SAME or (segment > 2 and _drift(traced[-2], traced[0]) <= SAME):
        return []
    return [f"in segment {segment} the candidate says again what it said in segment 1: its carry was begun anew"]


def _with_other_rows(side: Side, asked: Question) -> Iterator[tuple[int, Float32]]:
    """The logits of segment 1 for each of the nearest rows but the puzzle's own."""
    own, num_rows = asked.puzzle_id, len(side.puzzle_table)
    start = max(0, own - MOST_ROWS // 2)
    for row in range(start, min(num_rows, start + MOST_ROWS)):
        if row != own:
            side.engine.load(0, asked.tokens_T, side.puzzle_table[row])
            yield row, _next_logits(side)


def _trace(side: Side, asked: Question, num_segments: int) -> list[Float32]:
    """The logits of one puzzle, alone in the engine, after each segment."""
    side.engine.load(0, asked.tokens_T, side.puzzle_table[asked.puzzle_id])
    return [_next_logits(side) for _ in range(num_segments)]


def _next_logits(side: Side) -> Float32:
    logits_BTV = side.engine.step(1).logits_BTV
    assert logits_BTV is not None
    return logits_BTV[0].copy()


def _drift(one_TV: Float32, other_TV: Float32) -> float:
    with np.errstate(all="ignore"):
        drift = float(np.linalg.norm(one_TV - other_TV) / np.linalg.norm(other_TV))
    return drift if np.isfinite(drift) else float("inf")
