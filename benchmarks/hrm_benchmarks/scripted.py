"""Work for a scripted engine: made-up puzzles, how many segments they take, what a step costs; and a simulated server.

Shapes: N puzzles or requests, S segments (`share_S[s]` is the share of puzzles that take s + 1 segments), B rows of a
step (`step_s_B[b]` is the cost of b + 1 rows).
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles import registry
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import UNKNOWN, Puzzle

MAX_SEGMENTS = 16
EASY, HARD = range(1, 4), range(12, 17)  # the two humps of a bimodal shape

Shares = NDArray[np.float64]
Seconds = NDArray[np.float64]

Cost = Literal["flat", "half", "linear"]
COST_OF: dict[Cost, Callable[[int], float]] = {
    "flat": lambda num_rows: 1.0,  # noqa: ARG005 - a step costs the same however many rows it has
    "half": lambda num_rows: 0.5 + 0.5 * num_rows,
    "linear": float,
}


class VirtualClock:
    """Seconds that pass only in `sleep`: exact accounting in no time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def segment_shares(name: str) -> Shares:
    """A shape by name, or a recorded one: a JSON file from `hrm-bench serve --json`, or of a list of counts."""
    if name in SHAPES:
        return SHAPES[name]()
    if not Path(name).is_file():
        raise ValueError(f"{name!r} is no segment distribution: name a JSON file or one of {', '.join(SHAPES)}.")
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        counts = content["runs"]["refill"]["segments_histogram"] if isinstance(content, dict) else content
        counts_S = np.array(counts, np.float64)[1:]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} holds no segment histogram ({error}): record one with --json.") from error
    if counts_S.ndim != 1 or not counts_S.sum() > 0 or counts_S.min() < 0:
        raise ValueError(f"{name} holds no counts of segments: give [0, after 1, after 2, ...].")
    return counts_S / counts_S.sum()


def draw_segments(name: str, rng: np.random.Generator, num_puzzles: int) -> NDArray[np.int64]:
    """Segments for each of N puzzles."""
    share_S = segment_shares(name)
    return rng.choice(np.arange(1, len(share_S) + 1), size=num_puzzles, p=share_S)


def mean_segments(share_S: Shares) -> float:
    return float(np.arange(1, len(share_S) + 1) @ share_S)


def geometric(mean: float) -> Shares:
    """A geometric law cut off at 16 segments, with that mean."""
    low, high = 1e-6, 10.0  # the weight of one more segment; 1 makes every number of segments as likely
    for _ in range(100):
        ratio = (low + high) / 2
        low, high = (ratio, high) if mean_segments(_geometric(ratio)) < mean else (low, ratio)
    return _geometric((low + high) / 2)


def _geometric(ratio: float) -> Shares:
    weight_S = ratio ** np.arange(1.0, MAX_SEGMENTS + 1)
    return weight_S / weight_S.sum()


def bimodal(mean: float) -> Shares:
    """Easy puzzles of 1 to 3 segments mixed with hard ones of 12 to 16, with that mean."""
    hard = (mean - np.mean(EASY)) / (np.mean(HARD) - np.mean(EASY))
    share_S = np.zeros(MAX_SEGMENTS)
    share_S[np.array(EASY) - 1] = (1 - hard) / len(EASY)
    share_S[np.array(HARD) - 1] = hard / len(HARD)
    return share_S


SHAPES: dict[str, Callable[[], Shares]] = {
    f"{kind}{mean}": partial(shape, mean)
    for kind, shape in (("geo", geometric), ("bim", bimodal))
    for mean in (3, 5, 8)
}


def made_up(puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Symmetric images of one generated puzzle: cheap, provable, each with one solution, and hardly two alike."""
    example = puzzle.generate(rng, puzzle.difficulties[0])
    both = [np.repeat(puzzle.encode(grid)[None], num_puzzles, axis=0) for grid in (example.question, example.answer)]
    tokens_NT, labels_NT = puzzle.augment_BT(rng, *both)
    ids_N = np.zeros(num_puzzles, np.int32)
    return Questions(tokens_NT=tokens_NT, labels_NT=labels_NT, puzzle_ids_N=ids_N, source="made up")


def scripts(questions: Questions, segments_N: NDArray[np.int64]) -> dict[bytes, Script]:
    """What a scripted engine plays for each question: its label, after its number of segments."""
    return {
        asked.tokens_T.tobytes(): Script(answer_T=asked.labels_T, segments=int(segments))
        for asked, segments in zip(questions, segments_N, strict=True)
    }


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A scripted engine and its work; a step over B rows sleeps `step_ms` times the cost of B.

    The puzzles are made up from the seed, so it tells every question, its answer and its segments.
    """

    puzzle: str = "sudoku"
    num_puzzles: int = 1000
    seed: int = 0
    segments: str = "geo5"
    step_ms: float = 0.0
    cost: Cost = "flat"
    num_slots: int = 8
    queue_limit: int = 64

    @property
    def title(self) -> str:
        step = f"{self.cost} cost of {self.step_ms:g} ms a step"
        return f"scripted engine, {self.segments}, {self.num_slots} slots, {step}"

    def questions(self) -> Questions:
        return made_up(registry.get(self.puzzle), self.num_puzzles, np.random.default_rng(self.seed))

    def engine(
        self, asked: Questions, segments_N: NDArray[np.int64], *, sleep: Callable[[float], object] = time.sleep
    ) -> ScriptedEngine:
        """Plays every question's label after its number of segments; any other question is its own answer."""
        script_of = scripts(asked, segments_N)
        return ScriptedEngine(
            num_slots=self.num_slots,
            seq_len=asked.tokens_NT.shape[1],
            play=lambda tokens_T: script_of.get(tokens_T.tobytes()) or Script(answer_T=tokens_T),
            step_s=lambda num_rows: self.step_ms / 1e3 * COST_OF[self.cost](num_rows),
            sleep=sleep,
        )


class _Unproven:
    """A puzzle whose one token says how many segments it takes; nothing is ever proven."""

    vocab_size = 1 << 30

    def check_BT(self, inputs_BT: NDArray[np.int32], answers_BT: NDArray[np.int32]) -> NDArray[np.int8]:
        del answers_BT
        return np.full(len(inputs_BT), UNKNOWN, np.int8)


def simulate(
    arrivals_s_N: Seconds,
    segments_N: NDArray[np.int64],
    *,
    step_s_B: Seconds,
    queue_limit: int,
    overhead_s: float = 0.0,
) -> Seconds:
    """What a server should do from first principles: the latency of each request, NaN where the queue was full.

    The very lane that serves runs over an engine whose steps only pass time; `overhead_s` is spent on the way there.
    What a real server takes longer is the host's, the network's or other work on the machine.
    """
    clock, latency_s_N = VirtualClock(), np.full(len(arrivals_s_N), np.nan)
    engine = ScriptedEngine(
        num_slots=len(step_s_B),
        seq_len=1,
        play=lambda tokens_T: Script(answer_T=tokens_T, segments=int(tokens_T[0])),
        step_s=lambda num_rows: float(step_s_B[num_rows - 1]),
        sleep=clock.sleep,
    )
    max_inside = len(step_s_B) + queue_limit
    lane = Lane(engine, _Unproven(), queue_limit=max_inside, clock=clock)
    reached_s_N = arrivals_s_N + overhead_s
    next_one = num_inside = num_leaving = 0
    while next_one < len(arrivals_s_N) or lane.has_work:
        if not lane.has_work and reached_s_N[next_one] > clock():
            num_inside = num_leaving = 0
            clock.sleep(float(reached_s_N[next_one]) - clock())
        while next_one < len(arrivals_s_N) and reached_s_N[next_one] <= clock():
            if num_inside < max_inside:  # those that leave now were still there when these came
                num_segments = int(segments_N[next_one])
                attempt = Attempt(
                    attempt_id=next_one,
                    tokens_T=np.array([num_segments], np.int32),
                    puzzle_vector_E=np.zeros(1, np.float32),
                    policy=HaltingPolicy(kind="learned", max_segments=num_segments),
                    arrival_s=float(reached_s_N[next_one]),
                )
                lane.submit(attempt)
                num_inside += 1
            next_one += 1
        num_inside -= num_leaving
        results = lane.step()
        num_leaving = len(results)
        for result in results:
            latency_s_N[result.attempt_id] = clock() - arrivals_s_N[result.attempt_id]
    return latency_s_N


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> Seconds:
    """The moments of arrivals that are independent of each other."""
    return np.cumsum(rng.exponential(1 / rate, size=max(1, int(rate * seconds))))
