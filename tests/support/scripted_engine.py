"""An engine that plays a script, and the engine loop in a thread.

Shapes: B slots, T tokens, E puzzle-vector size.
"""

import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_edge_runtime.worker import loop
from hrm_edge_runtime.worker.lanes import MakeLanes


class Script(NamedTuple):
    """The script of one puzzle: from segment `segments` on it answers `answer_T` with margin +1.

    Before that it answers the question itself with margin -1.
    """

    answer_T: Int32
    segments: int = 1


class ScriptedEngine(Engine):
    """Steps `num_slots` scripts; the default script answers with the question."""

    step_s = 0.0

    def __init__(
        self, *, num_slots: int, seq_len: int, play: Callable[[Int32], Script] | None = None
    ) -> None:
        self.num_slots = num_slots
        self.seq_len = seq_len
        self._play = play or (lambda tokens_T: Script(answer_T=tokens_T))
        self._slots: list[tuple[Script, Int32, int] | None] = [None] * num_slots

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        del puzzle_vector_E  # the puzzle's tokens select the script
        self._slots[slot] = (self._play(tokens_T), tokens_T, 0)

    def move(self, source: int, target: int) -> None:
        self._slots[target] = self._slots[source]

    def step(self, num_active: int) -> StepOutput:
        if self.step_s:
            time.sleep(self.step_s)
        answer_BT = np.empty((num_active, self.seq_len), np.int32)
        margin_B = np.empty(num_active, np.float32)
        for slot in range(num_active):
            answer_BT[slot], margin_B[slot] = self._advance(slot)
        return StepOutput(answer_BT=answer_BT, halt_margin_B=margin_B, q_halt_B=margin_B.copy())

    def close(self) -> None:
        self._slots = [None] * self.num_slots

    def _advance(self, slot: int) -> tuple[Int32, float]:
        playing = self._slots[slot]
        assert playing is not None, f"slot {slot} was never loaded"
        script, tokens_T, segment = playing
        segment += 1
        self._slots[slot] = (script, tokens_T, segment)
        if segment < script.segments:
            return tokens_T, -1.0
        return script.answer_T, 1.0


class ThreadEngine:
    """The engine loop in a thread instead of a process; `kill` waits for its segment."""

    pid: int | None = None

    def __init__(self, make_lanes: MakeLanes) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self._thread = threading.Thread(
            target=loop.run, args=(make_lanes, self._theirs), name="hrm-engine", daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """Shut down its pipe, which wakes both readers; the thread ends at its next read."""
        with contextlib.suppress(OSError):  # it is closed already
            descriptor = os.dup(self._theirs.fileno())
            with socket.socket(fileno=descriptor) as pipe:
                pipe.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> int | None:
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else 0
