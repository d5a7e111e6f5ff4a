"""The one contract every engine keeps, whatever computes behind it.

Shapes: B slots, T tokens, E puzzle-vector size, V vocabulary. Everything above an engine is numpy; the carry never
leaves it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class EngineUnavailableError(ValueError):
    """An engine this machine cannot run; the text is one sentence with the remedy."""


class EngineLostError(RuntimeError):
    """A device that failed under way; the engine is not used again, and its process ends so that another begins."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOutput:
    """What the host sees of one segment: rows `[0, num_active)`, views that the next `step` overwrites.

    `answer_BT` holds token ids; `halt_margin_B` is positive where the model would stop; `q_halt_B` ranks votes.
    `logits_BTV` is there only from an engine that was asked for it.
    """

    answer_BT: Int32
    halt_margin_B: Float32
    q_halt_B: Float32
    logits_BTV: Float32 | None = None


class Engine(Protocol):
    """Slots of one model; the caller keeps the active ones a dense prefix, so no idle row is ever computed."""

    @property
    def num_slots(self) -> int: ...

    @property
    def seq_len(self) -> int: ...

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        """Begin a new puzzle in `slot`: its next segment starts from the initial state, whatever the carry holds."""
        ...

    def move(self, source: int, target: int) -> None:
        """Copy a slot's whole state (tokens, carry, freshness) over another's."""
        ...

    def step(self, num_active: int) -> StepOutput:
        """Run one segment over slots `[0, num_active)`."""
        ...

    def close(self) -> None:
        """Give back what the engine holds; it is not used afterwards."""
        ...
