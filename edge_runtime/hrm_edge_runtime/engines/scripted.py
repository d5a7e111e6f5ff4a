"""An engine that plays a script of its maker's choice. Shapes: B slots, T tokens, E puzzle-vector size."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.engines.engine import Engine, StepOutput


@dataclass(frozen=True, kw_only=True, eq=False)
class Script:
    """One puzzle's course: the answer is the question, margin -1; from segment `segments` on `answer_T`, margin +1."""

    answer_T: Int32
    segments: int = 1


Play = Callable[[Int32], Script]


class ScriptedEngine(Engine):
    """Steps `num_slots` scripts; a step over B rows calls `sleep(step_s(B))`. By default the answer is the question."""

    def __init__(
        self,
        *,
        num_slots: int,
        seq_len: int,
        play: Play | None = None,
        step_s: Callable[[int], float] | float = 0.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.num_slots = num_slots
        self.seq_len = seq_len
        self._play: Play = play or (lambda tokens_T: Script(answer_T=tokens_T))
        self._step_s = step_s
        self._sleep = sleep
        self._slots: list[tuple[Script, Int32, int] | None] = [None] * num_slots

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        del puzzle_vector_E  # a script knows its puzzle by the tokens alone
        self._slots[slot] = (self._play(tokens_T), tokens_T, 0)

    def move(self, source: int, target: int) -> None:
        self._slots[target] = self._slots[source]

    def step(self, num_active: int) -> StepOutput:
        seconds = self._step_s(num_active) if callable(self._step_s) else self._step_s
        if seconds:
            self._sleep(seconds)
        answers, margins = zip(*(self._advance(slot) for slot in range(num_active)), strict=True)
        margin_B = np.array(margins, np.float32)
        return StepOutput(answer_BT=np.stack(answers), halt_margin_B=margin_B, q_halt_B=margin_B.copy())

    def close(self) -> None:
        self._slots = [None] * self.num_slots

    def _advance(self, slot: int) -> tuple[Int32, float]:
        playing = self._slots[slot]
        assert playing is not None, f"slot {slot} was never loaded"
        script, tokens_T, segment = playing
        self._slots[slot] = (script, tokens_T, segment + 1)
        return (script.answer_T, 1.0) if segment + 1 >= script.segments else (tokens_T, -1.0)
