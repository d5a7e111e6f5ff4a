"""The model that every peer serves: the graph of a bundle on ONNX Runtime, one thread, FP32.

It reads and checks puzzles with our own code, as `hrm-serve` does. It has no lane: a batch runs
until its last puzzle is done. Shapes: B puzzles of a batch, T tokens.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import engine_for
from hrm_puzzles.puzzle import RIGHT

FIXED_SEGMENTS = 16  # as in the published evaluation


def settings_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line of a peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--form", choices=("fixed", "until-proven"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--wait-ms", type=float, default=2.0, help="Wait for a full batch.")
    return parser.parse_args(arguments)


class PuzzleModel:
    """Solves batches of puzzles: 16 segments of each (`fixed`), or until all are proven."""

    def __init__(self, bundle: str, form: str, batch: int) -> None:
        self._bundle = Bundle.open(bundle)
        self._stops_early = form == "until-proven"
        self._num_segments = FIXED_SEGMENTS
        if self._stops_early:
            self._num_segments = self._bundle.manifest.max_segments
        self._lock = threading.Lock()  # some servers call from several threads
        self._engine = engine_for(self._bundle, engine="cpu:fp32", num_slots=batch, num_threads=1)

    def solve(self, puzzles: Sequence[str]) -> list[dict[str, Any]]:
        """The answers in the order of the puzzles; a puzzle keeps its first proven answer."""
        puzzle = self._bundle.puzzle
        parsed = [puzzle.parse(text) for text in puzzles]
        tokens_BT = np.stack([puzzle.encode(one.grid) for one in parsed])
        with self._lock:
            answers_BT, is_proven_B = self._run(tokens_BT)
        answers: list[dict[str, Any]] = []
        for one, answer_T, is_proven in zip(parsed, answers_BT, is_proven_B, strict=True):
            solution = puzzle.write(puzzle.decode(answer_T), one.notation)
            answers.append({"solution": solution, "verified": bool(is_proven)})
        return answers

    def _run(self, tokens_BT: Any) -> tuple[Any, Any]:
        for slot, tokens_T in enumerate(tokens_BT):
            self._engine.load(slot, tokens_T, self._bundle.puzzle_table[0])
        answers_BT = tokens_BT
        is_proven_B = np.zeros(len(tokens_BT), bool)
        for _ in range(self._num_segments):
            output = self._engine.step(len(tokens_BT))
            answers_BT = np.where(is_proven_B[:, None], answers_BT, output.answer_BT)
            is_proven_B = self._bundle.puzzle.check_BT(tokens_BT, answers_BT) == RIGHT
            if self._stops_early and is_proven_B.all():
                break
        return answers_BT, is_proven_B
