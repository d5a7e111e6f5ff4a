"""What only a desktop adds to a comparison: PyTorch as the reference, and the bisection of two graphs.

Both need packages that no edge machine has, so they live in another room and are found by their entry points in the
group `hrm_edge.parity`. Shapes: T tokens, E puzzle-vector size, P rows of the puzzle table.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from hrm_edge_runtime.engines.engine import Engine, Float32, Int32
from hrm_edge_runtime.manifest import Manifest

GROUP = "hrm_edge.parity"


class DeskError(ValueError):
    """A desktop's part that is not here; the text is one sentence with the line to install it."""


class OpenedCheckpoint(NamedTuple):
    """A checkpoint's model as an engine, with its own puzzle table [P, E]."""

    engine: Engine
    puzzle_table: Float32


class OpenCheckpoint(Protocol):
    def __call__(self, path: Path, manifest: Manifest, num_slots: int) -> OpenedCheckpoint: ...


@dataclass(frozen=True, kw_only=True)
class NodeError:
    """How far a node is off although it gets what the reference's gets, as a share of the norm of its outputs.

    `limit` is what its kind of number explains; `reasons` say what was found around the node.
    """

    node: str
    operator: str
    error: float
    limit: float
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f"{self.node} ({self.operator}) is off by {self.error:.2g} of its norm where {self.limit:g} is allowed"
        return "; ".join((told, *self.reasons))


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The first node that diverges, if any, and the one that comes nearest to its limit or beyond."""

    first: NodeError | None
    nearest: NodeError

    def __str__(self) -> str:
        if self.first is not None:
            return str(self.first)
        return (
            "no node diverges: given the same carry the graphs agree, so look at what happens between segments, at the "
            f"puzzle's row, or at the engine itself (nearest to its limit: {self.nearest})"
        )


class Bisect(Protocol):
    def __call__(
        self, *, reference: Path, candidate: Path, tokens_T: Int32, puzzle_vector_E: Float32, segment: int
    ) -> Bisection:
        """Compare two step graphs node by node in one segment; a checkpoint directory stands for its graph."""
        ...


def checkpoint_opener() -> OpenCheckpoint:
    return cast(OpenCheckpoint, _load("checkpoint"))


def bisector() -> Bisect:
    return cast(Bisect, _load("bisect"))


def _load(name: str) -> Any:
    remedy = "pip install 'hrm-edge[export]'"
    for entry in entry_points(group=GROUP, name=name):
        try:
            return entry.load()
        except ImportError as error:
            raise DeskError(f"--{name} needs {error.name}, which is not installed: {remedy}.") from error
    raise DeskError(f"--{name} is not part of this installation: {remedy}.")
