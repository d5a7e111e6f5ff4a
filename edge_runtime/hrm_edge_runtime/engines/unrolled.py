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
from hrm_edge_runtime.engines.engine import EngineLostError, StepOutput
from hrm_edge_runtime.engines.onnx import CPU, HostEngine, open_session

NEVER = np.float32(np.finfo(np.float32).min)
"""A margin that halts no puzzle."""


class UnrolledEngine(HostEngine):
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
        shape_BT = (num_slots, manifest.seq_len)
        shape_BE = (num_slots, manifest.puzzle_vector_size)
        self._inputs = {
            "tokens_BT": np.zeros(shape_BT, np.int32),
            "puzzle_vector_BE": np.zeros(shape_BE, np.float32),
            "fresh_B": np.zeros(num_slots, np.bool_),
        }
        self._segment_B = np.zeros(num_slots, np.int32)  # of each slot's puzzle
        self._outputs = {
            "answer_BT": np.zeros(shape_BT, np.int32),
            "segments_B": np.zeros(num_slots, np.int32),
            "halt_margin_B": np.zeros(num_slots, np.float32),
            "q_halt_B": np.zeros(num_slots, np.float32),
        }
        names = {node.name for node in self._session.get_outputs()}
        if self.num_segments == 0 or names != self._outputs.keys():
            raise BundleError(
                f"{path} is not an unrolled graph: export the bundle again with --loop unrolled."
            )

    def move(self, source: int, target: int) -> None:
        for rows in (*self._inputs.values(), self._segment_B, *self._outputs.values()):
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        active = slice(num_active)
        new = np.flatnonzero(self._inputs["fresh_B"][active])
        if len(new):
            self._solve(new)
        self._segment_B[active] += 1
        outputs = {name: rows[active] for name, rows in self._outputs.items()}
        has_halted_B = self._segment_B[active] >= outputs["segments_B"]
        return StepOutput(
            answer_BT=np.where(has_halted_B[:, None], outputs["answer_BT"], 0),
            halt_margin_B=np.where(has_halted_B, outputs["halt_margin_B"], NEVER),
            q_halt_B=np.where(has_halted_B, outputs["q_halt_B"], NEVER),
        )

    def close(self) -> None:
        del self._session

    def _solve(self, slots: Any) -> None:
        """Run the whole loop for these slots."""
        feeds = {name: self._inputs[name][slots] for name in ("tokens_BT", "puzzle_vector_BE")}
        try:
            outputs: Any = self._session.run(list(self._outputs), feeds)
        except Exception as error:  # ONNX Runtime's errors lack a common class of their own
            raise EngineLostError(
                f"ONNX Runtime failed in the loop of {len(slots)} slots ({error})"
            ) from error
        for rows, values in zip(self._outputs.values(), outputs, strict=True):
            rows[slots] = values
        self._inputs["fresh_B"][slots] = False
        self._segment_B[slots] = 0
