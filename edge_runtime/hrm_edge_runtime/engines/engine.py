"""The contract of every engine: one segment over the dense prefix of slots of one model.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary.
Everything above an engine is numpy; the carry never leaves it.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.errors import Error
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_host.machine import has_card

# Array types that every layer uses. Names of variables carry the shapes.
Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Shape = tuple[int, ...]
Arrays = dict[str, NDArray[Any]]

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
FED = ("tokens_BT", "puzzle_vector_BE", "fresh_B")
"""The inputs that the host writes."""
MAX_SLOTS_CPU = 8
MAX_SLOTS_GPU = 16
MAX_SLOTS_CARD = 64  # an H100 runs 64 Sudokus in the time of one
# tokens; longer puzzles take much memory per slot and fill a GPU with few slots
LONG_SEQUENCE = 256
_SIZES = {
    "T": "seq_len",
    "E": "puzzle_vector_size",
    "N": "num_positions",
    "D": "hidden_size",
    "V": "vocab_size",
}


def _axes_of(tensor: str) -> tuple[str, ...]:
    letters = tensor.removesuffix("_next").rpartition("_B")[2]
    return tuple(_SIZES[letter] for letter in letters)


AXES = {name: _axes_of(name) for name in (*INPUTS, *OUTPUTS)}
"""The axes of each tensor after the batch axis, by their names in the manifest."""


def shapes_of(names: Iterable[str], manifest: Manifest, num_rows: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name in names:
        sizes = [getattr(manifest, axis) for axis in AXES[name]]
        shapes[name] = (num_rows, *sizes)
    return shapes


def outputs_read(want_logits: bool) -> tuple[str, ...]:
    """The outputs that the host reads."""
    if want_logits:
        return (*ANSWERS, LOGITS)
    return ANSWERS


def max_slots(bundle: Bundle, engine: str = "tensorrt") -> int:
    """The largest number of slots worth trying on this engine."""
    if engine == "cpu":
        return MAX_SLOTS_CPU
    most = usual_slots(bundle)
    if most == MAX_SLOTS_GPU and has_card():
        return MAX_SLOTS_CARD
    return most


def usual_slots(bundle: Bundle) -> int:
    """The slots that a GPU of any size can use."""
    if bundle.manifest.seq_len > LONG_SEQUENCE:
        return MAX_SLOTS_CPU
    return MAX_SLOTS_GPU


class EngineUnavailableError(Error, ValueError):
    """This machine cannot run the engine; the text is one sentence with the remedy."""

    exit_status = 3  # exit status of a command that cannot start


class EngineLostError(RuntimeError):
    """The device failed while it ran; the engine process ends and is restarted."""

    exit_status = 3  # exit status of a command that cannot continue


class StepOutput(NamedTuple):
    """Outputs of one segment: rows `[0, num_active)`, as views that the next segment overwrites.

    `answer_BT` holds token ids. `halt_margin_B` is positive if the model would stop. `q_halt_B`
    ranks votes. `logits_BTV` is None unless the engine was opened with `want_logits`.
    """

    answer_BT: Int32
    halt_margin_B: Float32
    q_halt_B: Float32
    logits_BTV: Float32 | None = None


class Engine(Protocol):
    """Slots of one model. The active slots are a dense prefix.

    If it `runs_ahead`, `run` computes the next segment while its caller reads the last.
    """

    num_slots: int
    seq_len: int
    runs_ahead: ClassVar[bool] = False

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        """Start a new puzzle in `slot`: its next segment begins from the initial state."""
        ...

    def replace_tokens(self, slot: int, tokens_T: Int32) -> None:
        """Replace a slot's tokens but keep its carry. Requires `want_logits`."""
        raise AssertionError(f"slot {slot} cannot take {tokens_T.size} tokens")

    def move(self, source: int, target: int) -> None:
        """Copy a slot's whole state (tokens, carry, freshness) to another slot."""
        ...

    def step(self, num_active: int) -> StepOutput:
        """Run one segment over slots `[0, num_active)`."""
        ...

    def run(self, num_active: int, num_segments: int) -> Iterator[StepOutput]:
        """Run `num_segments` segments; the caller loads and moves nothing in between."""
        for _ in range(num_segments):
            yield self.step(num_active)

    def read_carry(self, num_active: int) -> tuple[Float32, Float32] | None:
        """`z_high_BND` and `z_low_BND` after the last step; None if the engine does not show it."""
        del num_active
        return None

    def close(self) -> None:
        """Release what the engine holds; do not use it afterwards."""
        return


def step_seconds(engine: Engine, num_active: int) -> float:
    """The time of one segment over `num_active` slots."""
    began_s = time.perf_counter()
    engine.step(num_active)
    return time.perf_counter() - began_s


def median_step_ms(engine: Engine, num_active: int, *, seconds: float, min_steps: int) -> float:
    """Median time of a segment after a warm-up, over at least `seconds` and `min_steps` steps."""
    engine.step(num_active)
    times_s: list[float] = []
    while len(times_s) < min_steps or sum(times_s) < seconds:
        times_s.append(step_seconds(engine, num_active))
    return 1000 * float(np.median(times_s))


def load_blanks(engine: Engine, puzzle_vector_E: Float32) -> None:
    """Load every slot with a blank puzzle, so that steps of any size can be timed."""
    blank_T = np.zeros(engine.seq_len, np.int32)
    for slot in range(engine.num_slots):
        engine.load(slot, blank_T, puzzle_vector_E)
