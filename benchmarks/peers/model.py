"""The model that every peer serves: the graph of a bundle on ONNX Runtime, one thread, FP32.

It reads and checks puzzles with our own code, as `hrm-serve` does. It has no lane: a batch runs
until its last puzzle is done. Shapes: B puzzles of a batch, T tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_puzzles.puzzle import RIGHT

FIXED_SEGMENTS = 16  # as in the published evaluation
CARRIES = ("z_high_BND", "z_low_BND")
READ = ["answer_BT", "z_high_BND_next", "z_low_BND_next"]


@dataclass(frozen=True)
class PeerSettings:
    """The command line of a peer."""

    bundle: str
    form: str
    port: int
    batch: int
    wait_ms: float


def settings_of(arguments: Sequence[str] | None = None) -> PeerSettings:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--form", choices=("fixed", "until-proven"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--wait-ms", type=float, default=2.0)
    return PeerSettings(**vars(parser.parse_args(arguments)))


class PuzzleModel:
    """Solves batches of puzzles: 16 segments of each (`fixed`), or until all are proven."""

    def __init__(self, bundle: str, form: str) -> None:
        self._bundle = Bundle.open(bundle)
        self._stops_early = form == "until-proven"
        self._num_segments = FIXED_SEGMENTS
        if self._stops_early:
            self._num_segments = self._bundle.manifest.max_segments
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        graph = self._bundle.graph_path("fp32", device="cpu")
        self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def solve(self, puzzles: Sequence[str]) -> list[dict[str, Any]]:
        """The answers in the order of the puzzles; a puzzle keeps its first proven answer."""
        puzzle = self._bundle.puzzle
        parsed = [puzzle.parse(text) for text in puzzles]
        tokens_BT = np.stack([puzzle.encode(one.grid) for one in parsed])
        answers_BT, is_proven_B = self._run(tokens_BT)
        answers: list[dict[str, Any]] = []
        for one, answer_T, is_proven in zip(parsed, answers_BT, is_proven_B, strict=True):
            solution = puzzle.write(puzzle.decode(answer_T), one.notation)
            answers.append({"solution": solution, "verified": bool(is_proven)})
        return answers

    def _run(self, tokens_BT: Any) -> tuple[Any, Any]:
        manifest = self._bundle.manifest
        batch = len(tokens_BT)
        carry_shape = (batch, manifest.num_positions, manifest.hidden_size)
        feed: dict[str, Any] = {
            "tokens_BT": tokens_BT.astype(np.int32),
            "puzzle_vector_BE": np.repeat(self._bundle.puzzle_table[:1], batch, axis=0),
            "fresh_B": np.ones(batch, bool),
        }
        for name in CARRIES:
            feed[name] = np.zeros(carry_shape, np.float32)
        answers_BT = tokens_BT
        is_proven_B = np.zeros(batch, bool)
        for _ in range(self._num_segments):
            answer_BT, *carry = self._session.run(READ, feed)
            feed.update(zip(CARRIES, carry, strict=True))
            feed["fresh_B"] = np.zeros(batch, bool)
            answers_BT = np.where(is_proven_B[:, None], answers_BT, answer_BT)
            is_proven_B = self._bundle.puzzle.check_BT(tokens_BT, answers_BT) == RIGHT
            if self._stops_early and is_proven_B.all():
                break
        return answers_BT, is_proven_B
