"""Where a gate breaks, look for the reason: a wrong row of the puzzle table, a lost carry or, on a desktop, a node.

PyTorch and the bisection of graphs need packages that no edge machine has: plug-ins of the entry-point group
`hrm_edge.parity`. Shapes: T tokens, V vocabulary, E puzzle-vector size, P puzzle-table rows.
"""

from importlib.metadata import entry_points
from typing import Any

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Float32
from hrm_edge_runtime.parity.gates import Break
from hrm_edge_runtime.parity.measures import relative_error
from hrm_edge_runtime.parity.walk import Side
from hrm_puzzles.data.held_out import HeldOutPuzzle, Questions

MANY_TIMES = 4
"""Another row is named where it brings the candidate so many times nearer to the reference."""
SAME = 1e-5
"""One engine on the same puzzle and segment repeats itself to rounding."""
MOST_ROWS = 1024
GROUP = "hrm_edge.parity"


class DesktopError(ValueError):
    """A desktop plug-in that is not installed; the text is one sentence with the line to install it."""


def plugin(name: str) -> Any:
    """A part that only a desktop has; refuses one that is not installed (DesktopError).

    `checkpoint` opens one for so many slots: its model as an engine, and its own puzzle table [P, E]. `bisect` compares
    two step graphs in one segment and says in a sentence which node diverges first, if any.
    """
    remedy = "pip install 'hrm-edge[export]'"
    for entry in entry_points(group=GROUP, name=name):
        try:
            return entry.load()
        except ImportError as error:
            raise DesktopError(f"--{name} needs {error.name}, which is not installed: {remedy}.") from error
    raise DesktopError(f"--{name} is not part of this installation: {remedy}.")


def reasons_of(first: Break, reference: Side, candidate: Side, questions: Questions, bundle: Bundle) -> list[str]:
    """What explains the first break, in a sentence each; nothing where neither fault left its mark."""
    if first.segment is None or first.puzzle is None:
        return []
    asked = questions[first.puzzle]
    if first.segment > 1:
        return _lost_carry(candidate, asked, first.segment)
    return _other_row(reference, candidate, asked, bundle.identifiers)


def _other_row(reference: Side, candidate: Side, asked: HeldOutPuzzle, names: tuple[str, ...]) -> list[str]:
    """The row of the puzzle table with which the candidate would agree, among the nearest ones."""
    (expected_TV,) = _trace(reference, asked, 1)
    (found_TV,) = _trace(candidate, asked, 1)
    own, start = asked.puzzle_id, max(0, asked.puzzle_id - MOST_ROWS // 2)
    drift_of: dict[int, float] = {}
    for row in range(start, min(len(candidate.puzzle_table), start + MOST_ROWS)):
        if row != own:
            candidate.engine.load(0, asked.tokens_T, candidate.puzzle_table[row])
            drift_of[row] = relative_error(_next_logits(candidate), expected_TV)
    best = min(drift_of, key=drift_of.__getitem__, default=None)
    if best is None or MANY_TIMES * drift_of[best] > relative_error(found_TV, expected_TV):
        return []
    rows = f"row {best} of the puzzle table ({names[best]}) instead of row {own} ({names[own]})"
    return [f"given {rows} the candidate agrees: the two sides do not read the same row"]


def _lost_carry(candidate: Side, asked: HeldOutPuzzle, segment: int) -> list[str]:
    """A segment that says what segment 1 said was given no carry."""
    traced = _trace(candidate, asked, segment)
    if relative_error(traced[-1], traced[0]) > SAME:
        return []
    if segment > 2 and relative_error(traced[-2], traced[0]) <= SAME:
        return []
    return [f"in segment {segment} the candidate says again what it said in segment 1: its carry was begun anew"]


def _trace(side: Side, asked: HeldOutPuzzle, num_segments: int) -> list[Float32]:
    """The logits of one puzzle, alone in the engine, after each segment."""
    side.engine.load(0, asked.tokens_T, side.puzzle_table[asked.puzzle_id])
    return [_next_logits(side) for _ in range(num_segments)]


def _next_logits(side: Side) -> Float32:
    logits_BTV = side.engine.step(1).logits_BTV
    assert logits_BTV is not None
    return logits_BTV[0].copy()
