"""What each halting policy costs and saves, from one run of every puzzle through all segments.

The server's own `stops_B` then applies each policy to the margins that the serving engine computed.

Shapes: N puzzles, B slots, S segments, T tokens, P rows of the puzzle table, E puzzle-vector size.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.halting import HaltingPolicy, stops_B
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32
from hrm_host.progress import OnProgress, unheard
from hrm_parity.outcomes import Outcomes, Score
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import RIGHT, Puzzle

RATING_CLASSES = {
    "0": (0, 0),
    "1-9": (1, 9),
    "10-19": (10, 19),
    "20-49": (20, 49),
    "50+": (50, np.inf),
}
"""Difficulty by rating, bounds included."""
ALL = "all"
NUM_THRESHOLDS = 65


class Rollout(NamedTuple):
    """Margin, verdict and exactness of every puzzle after every segment, and the last answers."""

    questions: Questions
    margin_SN: NDArray[np.float32]
    verdict_SN: NDArray[np.int8]
    exact_SN: NDArray[np.bool_]
    answers_NT: Int32
    q_halt_N: Float32

    @property
    def num_segments(self) -> int:
        return len(self.margin_SN)

    def classes(self) -> dict[str, NDArray[np.bool_]]:
        """Masks of all puzzles and, if ratings are known, of each difficulty that occurs."""
        found = {ALL: np.ones(len(self.questions), np.bool_)}
        ratings_N = self.questions.ratings_N
        if ratings_N is None:
            return found
        for name, (low, high) in RATING_CLASSES.items():
            is_in_class_N = (ratings_N >= low) & (ratings_N <= high)
            if is_in_class_N.any():
                found[name] = is_in_class_N
        return found

    def under(self, policy: HaltingPolicy) -> Outcomes:
        """Where each puzzle would have halted, and its answer at that point."""
        segment_S1 = np.arange(1, self.num_segments + 1)[:, None]
        stops_SN = stops_B(self.margin_SN, segment_S1, self.verdict_SN, policy)
        assert stops_SN.any(axis=0).all(), "a policy may not run longer than the rollout"
        index_N = stops_SN.argmax(axis=0)
        last = (index_N, np.arange(len(index_N)))
        return Outcomes(
            exact_N=self.exact_SN[last],
            proven_N=self.verdict_SN[last] == RIGHT,
            segments_N=index_N + 1,
        )


@dataclass(frozen=True, kw_only=True)
class PolicyScore:
    """A policy with its score on all puzzles and on each difficulty that occurs."""

    policy: HaltingPolicy
    scores: dict[str, Score]

    @property
    def total(self) -> Score:
        return self.scores[ALL]


def roll_out(
    engine: Engine,
    puzzle: Puzzle,
    puzzle_table_PE: Float32,
    questions: Questions,
    num_segments: int,
    *,
    end_s: float = math.inf,
    progress: OnProgress = unheard,
) -> Rollout:
    """Run every puzzle through all segments, as many at a time as the engine has slots.

    The puzzles of a step that are running at the monotonic time `end_s` are the last ones.
    """
    num_puzzles = len(questions)
    shape = (num_segments, num_puzzles)
    margin_SN = np.zeros(shape, np.float32)
    verdict_SN = np.zeros(shape, np.int8)
    exact_SN = np.zeros(shape, np.bool_)
    answers_NT = np.zeros_like(questions.tokens_NT)
    q_halt_N = np.zeros(num_puzzles, np.float32)
    end = 0
    while end < num_puzzles and (end == 0 or time.monotonic() < end_s):
        start = end
        end = min(start + engine.num_slots, num_puzzles)
        part = slice(start, end)
        tokens_BT = questions.tokens_NT[part]
        labels_BT = questions.labels_NT[part]
        for slot, puzzle_id in enumerate(questions.puzzle_ids_N[part]):
            engine.load(slot, tokens_BT[slot], puzzle_table_PE[puzzle_id])
        for segment in range(num_segments):
            output = engine.step(end - start)
            is_right_BT = (output.answer_BT == labels_BT) | (labels_BT < 0)
            margin_SN[segment, part] = output.halt_margin_B
            verdict_SN[segment, part] = puzzle.check_BT(tokens_BT, output.answer_BT)
            exact_SN[segment, part] = is_right_BT.all(axis=1)
            answers_NT[part] = output.answer_BT
            q_halt_N[part] = output.q_halt_B
        progress(end, num_puzzles)
    return Rollout(
        questions=questions.at(np.arange(end)),
        margin_SN=margin_SN[:, :end],
        verdict_SN=verdict_SN[:, :end],
        exact_SN=exact_SN[:, :end],
        answers_NT=answers_NT[:end],
        q_halt_N=q_halt_N[:end],
    )


def score_policy(rollout: Rollout, policy: HaltingPolicy) -> PolicyScore:
    outcomes = rollout.under(policy)
    scores: dict[str, Score] = {}
    for name, is_in_class_N in rollout.classes().items():
        scores[name] = outcomes.at(is_in_class_N).score()
    return PolicyScore(policy=policy, scores=scores)


def fixed_scores(rollout: Rollout) -> list[PolicyScore]:
    """Scores of halting after 1, 2, 4 ... and after all segments."""
    last = rollout.num_segments
    counts = [2**power for power in range((last - 1).bit_length())]
    points: list[PolicyScore] = []
    for count in [*counts, last]:
        policy = HaltingPolicy(kind="fixed", max_segments=count)
        points.append(score_policy(rollout, policy))
    return points


def learned_curve(rollout: Rollout) -> list[PolicyScore]:
    """Scores of the learned policy at threshold 0 and at quantiles of the margins, in rising order.

    Under the last threshold no puzzle halts early.
    """
    shares = np.linspace(0, 1, NUM_THRESHOLDS)
    quantiles = np.quantile(rollout.margin_SN, shares, method="higher")
    thresholds = sorted({0.0, *quantiles.tolist()})
    points: list[PolicyScore] = []
    for threshold in thresholds:
        policy = learned_policy(rollout, threshold)
        points.append(score_policy(rollout, policy))
    return points


def learned_policy(rollout: Rollout, threshold: float = 0.0) -> HaltingPolicy:
    return HaltingPolicy(threshold=threshold, max_segments=rollout.num_segments)


def choose(curve: Sequence[PolicyScore], max_loss: float) -> PolicyScore:
    """The point with the fewest segments that loses at most `max_loss` against the last point.

    `max_loss` is a share of exact solves.
    """
    required = curve[-1].total.exact - max_loss - 1e-9  # sums of floats round
    good = [point for point in curve if point.total.exact >= required]
    return min(good, key=lambda point: (point.total.mean_segments, -point.total.exact))
