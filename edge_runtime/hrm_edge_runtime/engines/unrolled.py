"""The unrolled graph of a bundle on ONNX Runtime, so that what other programs call can be compared and served here.

One call answers a puzzle with all its segments and says after how many it halted. The engine makes that call in a
puzzle's first segment and hands the answer out in the segment it came from; before that it says nothing: answer 0
everywhere, and a margin that stops nobody. Shapes: B slots, T tokens, E puzzle-vector size.
"""

from typing import Any

import numpy as np

from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.engine import Engine, EngineLostError, StepOutput
from hrm_edge_runtime.engines.onnx import CPU, open_session

SILENT = float(np.finfo(np.float32).min)
SAID = ("answer_BT", "segments_B", "halt_margin_B", "q_halt_B")


class UnrolledEngine(Engine):
    """Slots over a graph that keeps no carry; `num_segments` is how far it goes at most."""

    def __init__(self, bundle: Bundle, *, precision: str, num_slots: int, num_threads: int | None = None) -> None:
        path, manifest = bundle.unrolled_path(precision), bundle.manifest
        self.num_slots, self.seq_len = num_slots, manifest.seq_len
        self._session = open_session(path, CPU, num_threads)
        self.num_segments = int(self._session.get_modelmeta().custom_metadata_map.get("num_segments", "0"))
        if not self.num_segments or {node.name for node in self._session.get_outputs()} != set(SAID):
            raise BundleError(f"{path} is no unrolled graph: export the bundle again with --loop unrolled.")
        self._tokens_BT = np.zeros((num_slots, manifest.seq_len), np.int32)
        self._vector_BE = np.zeros((num_slots, manifest.puzzle_vector_size), np.float32)
        self._answer_BT = np.zeros_like(self._tokens_BT)
        self._margin_B, self._q_halt_B = np.zeros((2, num_slots), np.float32)
        self._segment_B, self._halts_B = np.zeros((2, num_slots), np.int32)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._tokens_BT[slot], self._vector_BE[slot], self._segment_B[slot] = tokens_T, puzzle_vector_E, 0

    def move(self, source: int, target: int) -> None:
        said = (self._answer_BT, self._margin_B, self._q_halt_B, self._segment_B, self._halts_B)
        for rows in (self._tokens_BT, self._vector_BE, *said):
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        if len(new := np.flatnonzero(self._segment_B[:num_active] == 0)):
            feeds = {"tokens_BT": self._tokens_BT[new], "puzzle_vector_BE": self._vector_BE[new]}
            try:
                said: list[Any] = self._session.run(SAID, feeds)  # pyright: ignore[reportAssignmentType]
            except Exception as error:  # ONNX Runtime has no common class of its own
                raise EngineLostError(f"ONNX Runtime failed in the loop of {len(new)} slots ({error})") from error
            self._answer_BT[new], self._halts_B[new], self._margin_B[new], self._q_halt_B[new] = said
        self._segment_B[:num_active] += 1
        speaks_B = self._segment_B[:num_active] >= self._halts_B[:num_active]
        return StepOutput(
            answer_BT=np.where(speaks_B[:, None], self._answer_BT[:num_active], 0),
            halt_margin_B=np.where(speaks_B, self._margin_B[:num_active], np.float32(SILENT)),
            q_halt_B=np.where(speaks_B, self._q_halt_B[:num_active], np.float32(SILENT)),
        )

    def close(self) -> None:
        del self._session
