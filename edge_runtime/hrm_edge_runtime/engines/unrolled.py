"""A bundle's unrolled graph on ONNX Runtime, to compare and serve the graph that others call.

One call of the graph runs all segments of a puzzle and returns the answer and the number of
segments after which it halted. The engine makes that call in a puzzle's first segment and returns
the answer in the segment in which the puzzle halted. Until then its outputs are blank: answer 0
everywhere, and a margin that never halts. Shapes: B slots, T tokens, E puzzle-vector size.
"""

from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.engine import Engine, EngineLostError, Float32, Int32, StepOutput
from hrm_edge_runtime.engines.onnx import CPU, open_session

NEVER = np.float32(np.finfo(np.float32).min)
"""A margin that halts no puzzle."""
OUTPUTS = ("answer_BT", "segments_B", "halt_margin_B", "q_halt_B")


class UnrolledEngine(Engine):
    """Slots over a graph without a carry; the graph runs at most `num_segments` segments."""

    def __init__(
        self, bundle: Bundle, *, precision: str, num_slots: int, num_threads: int | None = None
    ) -> None:
        path = bundle.unrolled_path(precision)
        manifest = bundle.manifest
        self.num_slots = num_slots
        self.seq_len = manifest.seq_len
        self._session = open_session(path, CPU, num_threads)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.num_segments = int(metadata.get("num_segments", "0"))
        names = {node.name for node in self._session.get_outputs()}
        if self.num_segments == 0 or names != set(OUTPUTS):
            raise BundleError(
                f"{path} is not an unrolled graph: export the bundle again with --loop unrolled."
            )
        self._tokens_BT = np.zeros((num_slots, manifest.seq_len), np.int32)
        self._vector_BE = np.zeros((num_slots, manifest.puzzle_vector_size), np.float32)
        self._answer_BT = np.zeros_like(self._tokens_BT)
        self._margin_B = np.zeros(num_slots, np.float32)
        self._q_halt_B = np.zeros(num_slots, np.float32)
        self._segment_B = np.zeros(num_slots, np.int32)
        self._halts_B = np.zeros(num_slots, np.int32)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._tokens_BT[slot] = tokens_T
        self._vector_BE[slot] = puzzle_vector_E
        self._segment_B[slot] = 0

    def move(self, source: int, target: int) -> None:
        for rows in (
            self._tokens_BT,
            self._vector_BE,
            self._answer_BT,
            self._margin_B,
            self._q_halt_B,
            self._segment_B,
            self._halts_B,
        ):
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        active = slice(num_active)
        new = np.flatnonzero(self._segment_B[active] == 0)
        if len(new):
            self._solve(new)
        self._segment_B[active] += 1
        has_halted_B = self._segment_B[active] >= self._halts_B[active]
        return StepOutput(
            answer_BT=np.where(has_halted_B[:, None], self._answer_BT[active], 0),
            halt_margin_B=np.where(has_halted_B, self._margin_B[active], NEVER),
            q_halt_B=np.where(has_halted_B, self._q_halt_B[active], NEVER),
        )

    def close(self) -> None:
        del self._session

    def _solve(self, slots: Any) -> None:
        """Run the whole loop for these slots."""
        feeds = {
            "tokens_BT": self._tokens_BT[slots],
            "puzzle_vector_BE": self._vector_BE[slots],
        }
        try:
            outputs: Any = self._session.run(OUTPUTS, feeds)
        except Exception as error:  # ONNX Runtime's errors lack a common class of their own
            raise EngineLostError(
                f"ONNX Runtime failed in the loop of {len(slots)} slots ({error})"
            ) from error
        answer_BT, halts_B, margin_B, q_halt_B = outputs
        self._answer_BT[slots] = answer_BT
        self._halts_B[slots] = halts_B
        self._margin_B[slots] = margin_B
        self._q_halt_B[slots] = q_halt_B
