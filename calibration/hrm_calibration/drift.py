"""How far rounding moves the carry in one segment, from states that puzzles really pass through.

Exact solves of a few hundred puzzles cannot rank layers: most change none. The carry tells them apart without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.recording import CARRIES, slots_for
from hrm_calibration.rollouts import States

Carries = list[NDArray[np.float32]]


def carries_after(graph: onnx.ModelProto, states: States, *, num_rows: int, num_threads: int = 1) -> Carries:
    """Both carries one segment later, `num_rows` states at a time."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [f"{name}_next" for name in CARRIES]
    count = len(states["fresh_B"])
    parts = [
        session.run(names, {name: rows[start : start + num_rows] for name, rows in states.items()})
        for start in range(0, count, num_rows)
    ]
    return [np.concatenate(carry) for carry in zip(*parts, strict=True)]


def drift(ours: Carries, reference: Carries) -> float:
    """The larger relative distance (Euclidean) of the two carries."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, reference, strict=True))


def sensitivity(
    graph: onnx.ModelProto,
    scales: Mapping[str, float],
    states: States,
    *,
    weight_bits: int,
    num_threads: int = 1,
    progress: Callable[[int, int], object],
) -> list[tuple[str, float]]:
    """Each matrix with the drift of rounding what it reads, all others weight-only; the worst first."""
    weights = sorted({site.weight for site in call_sites(graph)})
    num_rows = slots_for(graph)

    def carries(weight_only: Sequence[str]) -> Carries:
        ours = unsigned(quantise(graph, scales, weight_only=weight_only, weight_bits=weight_bits))
        return carries_after(ours, states, num_rows=num_rows, num_threads=num_threads)

    reference = carries(weights)
    drifts: list[tuple[str, float]] = []
    for weight in weights:
        drifts.append((weight, drift(carries([other for other in weights if other != weight]), reference)))
        progress(len(drifts), len(weights))
    return sorted(drifts, key=lambda pair: -pair[1])
