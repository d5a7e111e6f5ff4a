"""The contract of every engine: one segment over the dense prefix of slots of one model.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary. Everything above an engine
is numpy; the carry never leaves it.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from hrm_edge_runtime.contract.arrays import Float32, Int32, Shape
from hrm_edge_runtime.contract.manifest import Manifest

CARRIES = ("z_high_BND", "z_low_BND")
LOGITS = "logits_BTV"
ANSWERS = ("answer_BT", "halt_margin_B", "q_halt_B")
INPUTS: dict[str, Any] = {
    "tokens_BT": np.int32,
    "puzzle_vector_BE": np.float32,
    "fresh_B": np.bool_,
    "z_high_BND": np.float32,
    "z_low_BND": np.float32,
}
OUTPUTS: dict[str, Any] = {
    "answer_BT": np.int32,
    "halt_margin_B": np.float32,
    "q_halt_B": np.float32,
    "logits_BTV": np.float32,
    "z_high_BND_next": np.float32,
    "z_low_BND_next": np.float32,
}
FED = ("tokens_BT", "puzzle_vector_BE", "fresh_B")  # the inputs that the host writes
_SIZES = {"T": "seq_len", "E": "puzzle_vector_size", "N": "num_positions", "D": "hidden_size", "V": "vocab_size"}
AXES = {
    name: tuple(_SIZES[letter] for letter in name.removesuffix("_next").rpartition("_B")[2])
    for name in (*INPUTS, *OUTPUTS)
}
"""The sizes of each tensor after the batch axis, by their names in the manifest."""


def shapes_of(names: Iterable[str], manifest: Manifest, num_rows: int) -> dict[str, Shape]:
    return {name: (num_rows, *(getattr(manifest, axis) for axis in AXES[name])) for name in names}


class EngineUnavailableError(ValueError):
    """An engine that this machine cannot run; the text is one sentence with the remedy."""

    exit_status = 3  # of a command: it cannot begin here


class EngineLostError(RuntimeError):
    """A device that failed while it ran; the engine is not used again, and its process ends and is restarted."""

    exit_status = 3  # of a command: it cannot go on here


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOutput:
    """What the host sees of one segment: rows `[0, num_active)`, views that the next segment overwrites.

    `answer_BT` holds token ids; `halt_margin_B` is positive where the model would stop; `q_halt_B` ranks votes.
    `logits_BTV` is None unless the engine was opened with `want_logits`.
    """

    answer_BT: Int32
    halt_margin_B: Float32
    q_halt_B: Float32
    logits_BTV: Float32 | None = None


class Engine(Protocol):
    """Slots of one model, the active ones a dense prefix; one that `runs_ahead` computes while its caller looks."""

    num_slots: int
    seq_len: int
    runs_ahead: ClassVar[bool] = False

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        """Begin a new puzzle in `slot`: its next segment starts from the initial state, whatever the carry holds."""
        ...

    def retell(self, slot: int, tokens_T: Int32) -> None:
        """Give a slot other tokens from its next segment on, while its carry stays; only where logits are read."""
        raise RuntimeError(f"{type(self).__name__} cannot give slot {slot} {tokens_T.size} other tokens")

    def move(self, source: int, target: int) -> None:
        """Copy a slot's whole state (tokens, carry, freshness) over another's."""
        ...

    def step(self, num_active: int) -> StepOutput:
        """Run one segment over slots `[0, num_active)`."""
        ...

    def run(self, num_active: int, num_segments: int) -> Iterator[StepOutput]:
        """Run so many segments, each when it is asked for or one ahead; nothing is loaded or moved in between."""
        for _ in range(num_segments):
            yield self.step(num_active)

    def close(self) -> None:
        """Release what the engine holds, if anything; it is not used afterwards."""
        return


def step_seconds(engine: Engine, num_active: int) -> float:
    began_s = time.perf_counter()
    engine.step(num_active)
    return time.perf_counter() - began_s


def median_step_ms(engine: Engine, num_active: int, *, seconds: float, min_steps: int) -> float:
    """The median time of a segment over at least `seconds` and `min_steps` of them, after one that is not counted."""
    engine.step(num_active)
    times_s: list[float] = []
    while len(times_s) < min_steps or sum(times_s) < seconds:
        times_s.append(step_seconds(engine, num_active))
    return 1e3 * float(np.median(times_s))


def load_blanks(engine: Engine, puzzle_vector_E: Float32) -> None:
    """Load every slot with a blank puzzle, so that steps of any size can be timed."""
    blank_T = np.zeros(engine.seq_len, np.int32)
    for slot in range(engine.num_slots):
        engine.load(slot, blank_T, puzzle_vector_E)
