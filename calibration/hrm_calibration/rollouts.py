"""Puzzles through the lane that serves: what each ended with, and the ranges and states met on the way.

Carries of every segment a puzzle really reaches take part, as often as it is reached, because the lane itself decides
when a puzzle stops and which takes its place.
Shapes: N puzzles, K sampled states, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hrm_calibration.histogram import Histogram
from hrm_calibration.quantise import call_sites
from hrm_calibration.recording import RecordingEngine
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker, Lane, Result, run_all
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.engine import Engine
from hrm_puzzles.data.held_out import Questions

MAX_STATES = 64
STATES_BYTES = 16 << 20
"""Of all sampled states: few suffice where each has hundreds of positions, and every matrix is tried on all of them."""
INPUTS = ("tokens_BT", "puzzle_vector_BE", "fresh_B", "z_high_BND", "z_low_BND")

Count = Callable[[int], object]
"""Hears how many puzzles are done."""
States = dict[str, NDArray[Any]]
"""The graph's inputs by name, one row for each state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How each puzzle ended under a policy; `exact_N` where the answer equals the label."""

    exact_N: NDArray[np.bool_]
    proven_N: NDArray[np.bool_]
    segments_N: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.exact_N)

    def first(self, count: int) -> Outcome:
        return Outcome(exact_N=self.exact_N[:count], proven_N=self.proven_N[:count], segments_N=self.segments_N[:count])


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """Magnitudes by call site, some of the states met, and how the puzzles ended."""

    histograms: Mapping[str, Histogram]
    states: States
    outcome: Outcome


def solve(
    engine: Engine,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    progress: Count | None = None,
) -> Outcome:
    """Every puzzle once through a lane, which runs until the last has halted."""
    lane = Lane(engine, puzzle, queue_limit=engine.num_slots)
    results: dict[int, Result] = {}
    attempts = (_job(index, questions, puzzle_table, policy) for index in range(len(questions)))
    for result in run_all(lane, attempts):
        results[result.attempt_id] = result
        if progress is not None:
            progress(len(results))
    return _outcome(questions, results)


def record(
    graph: onnx.ModelProto,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    num_threads: int = 1,
    seed: int = 0,
    progress: Count | None = None,
) -> Recording:
    """The ranges of every call site over whole rollouts, in memory that neither puzzles nor segments enlarge."""
    tensor_of = {site.name: site.tensor for site in call_sites(graph)}
    by_tensor = {tensor: Histogram() for tensor in tensor_of.values()}
    sample = _Reservoir(np.random.default_rng(seed))

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        sample.offer({name: arrays[name] for name in INPUTS})
        for tensor, histogram in by_tensor.items():
            histogram.add(arrays[tensor])

    engine = RecordingEngine(graph, num_threads=num_threads, observe=observe)
    try:
        outcome = solve(engine, puzzle, puzzle_table, questions, policy, progress=progress)
    finally:
        engine.close()
    histograms = {site: by_tensor[tensor] for site, tensor in tensor_of.items()}
    return Recording(histograms=histograms, states=sample.states(), outcome=outcome)


class _Reservoir:
    """A fair sample of all rows offered, however many come (Vitter 1985, algorithm R)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._rows: list[dict[str, NDArray[Any]]] = []
        self._num_seen = 0

    def offer(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for index in range(len(arrays["fresh_B"])):
            self._num_seen += 1
            limit = max(1, min(MAX_STATES, STATES_BYTES // sum(rows[index].nbytes for rows in arrays.values())))
            place = len(self._rows) if len(self._rows) < limit else int(self._rng.integers(self._num_seen))
            if place < limit:
                self._rows[place : place + 1] = [{name: rows[index].copy() for name, rows in arrays.items()}]

    def states(self) -> States:
        return {name: np.stack([row[name] for row in self._rows]) for name in INPUTS}


def _job(index: int, questions: Questions, puzzle_table: NDArray[np.float32], policy: HaltingPolicy) -> Attempt:
    vector_E = puzzle_table[questions.puzzle_ids_N[index]]
    return Attempt(
        attempt_id=index, tokens_T=questions.tokens_NT[index], puzzle_vector_E=vector_E, policy=policy, arrival_s=0.0
    )


def _outcome(questions: Questions, results: Mapping[int, Result]) -> Outcome:
    in_order = [results[index] for index in range(len(questions))]
    return Outcome(
        exact_N=np.array(
            [_is_exact(result.answer_T, label_T) for result, label_T in zip(in_order, questions.labels_NT, strict=True)]
        ),
        proven_N=np.array([result.verified is True for result in in_order]),
        segments_N=np.array([result.segments for result in in_order], np.int32),
    )


def _is_exact(answer_T: NDArray[np.int32] | None, label_T: NDArray[np.int32]) -> bool:
    """Equal wherever the label says anything; an engine that gave garbage has no answer."""
    return answer_T is not None and bool(((answer_T == label_T) | (label_T < 0)).all())
