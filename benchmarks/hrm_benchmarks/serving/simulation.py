"""What the server should do, from first principles: the very lane it runs, over an engine whose steps only pass time.

Fed with the moments of arrival, the segments each puzzle took and the measured cost of a step, it says when each puzzle
is done. What a real server takes longer is the host's, the network's or a neighbour's on the machine.

Shapes: N requests, B rows of a step (`step_s_B[b]` is the cost of b + 1 rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.costs import VirtualClock
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles.puzzle import UNKNOWN

Seconds = NDArray[np.float64]


class _Counted:
    """A puzzle whose one token says how many segments it takes; nothing is ever proven."""

    vocab_size = 1 << 30

    def check_BT(self, inputs_BT: NDArray[np.int32], answers_BT: NDArray[np.int32]) -> NDArray[np.int8]:
        del answers_BT
        return np.full(len(inputs_BT), UNKNOWN, np.int8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A server as the simulation sees it; `overhead_s` is spent on the way to the lane, off the engine."""

    step_s_B: Seconds
    queue_limit: int
    overhead_s: float = 0.0

    @property
    def num_slots(self) -> int:
        return len(self.step_s_B)


def simulate(model: Model, arrivals_s_N: Seconds, segments_N: NDArray[np.int64]) -> Seconds:
    """Latency of each request; NaN where the queue was full."""
    clock, latency_s_N = VirtualClock(), np.full(len(arrivals_s_N), np.nan)
    engine = ScriptedEngine(
        num_slots=model.num_slots,
        seq_len=1,
        play=lambda tokens_T: Script(answer_T=tokens_T, segments=int(tokens_T[0])),
        step_s=lambda num_rows: float(model.step_s_B[num_rows - 1]),
        sleep=clock.sleep,
    )
    lane = Lane(engine, _Counted(), queue_limit=model.num_slots + model.queue_limit, clock=clock)
    reached_s_N = arrivals_s_N + model.overhead_s
    next_one = num_inside = num_leaving = 0
    while next_one < len(arrivals_s_N) or lane.has_work:
        if not lane.has_work and reached_s_N[next_one] > clock():
            num_inside = num_leaving = 0
            clock.sleep(float(reached_s_N[next_one]) - clock())
        while next_one < len(arrivals_s_N) and reached_s_N[next_one] <= clock():
            if num_inside < model.num_slots + model.queue_limit:  # whoever leaves now was there when these came
                _submit(lane, next_one, int(segments_N[next_one]), float(reached_s_N[next_one]))
                num_inside += 1
            next_one += 1
        num_inside -= num_leaving
        results = lane.step()
        num_leaving = len(results)
        for result in results:
            latency_s_N[result.attempt_id] = clock() - arrivals_s_N[result.attempt_id]
    return latency_s_N


def _submit(lane: Lane, number: int, num_segments: int, arrival_s: float) -> None:
    job = Attempt(
        attempt_id=number,
        tokens_T=np.array([num_segments], np.int32),
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=HaltingPolicy(kind="learned", max_segments=num_segments),
        arrival_s=arrival_s,
    )
    lane.submit(job)


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> Seconds:
    """Arrivals that know nothing of each other."""
    gaps_s = rng.exponential(1 / rate, size=max(1, int(rate * seconds)))
    return np.cumsum(gaps_s)
