"""What each halting policy costs and saves, from one run of every puzzle through all segments.

The server's own `stops_B` then applies each policy to the margins that the serving engine computed.

Shapes: N puzzles, B slots, S segments, T tokens, E puzzle-vector size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.contract.halting import HaltingPolicy, stops_B
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import RIGHT, UNKNOWN

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
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Score:
    """Shares of puzzles whose last answer equals the label or is proven, and mean segments."""

    num_puzzles: int
    exact: float
    proven: float
    mean_segments: float

    def __str__(self) -> str:
        return f"{100 * self.exact:.1f} / {self.mean_segments:.1f}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """How each puzzle ended under a policy; it is exact if its last answer equals the label."""

    exact_N: NDArray[np.bool_]
    proven_N: NDArray[np.bool_]
    segments_N: NDArray[np.int32]

    def at(self, rows: slice | NDArray[np.bool_]) -> Outcomes:
        exact_N = self.exact_N[rows]
        proven_N = self.proven_N[rows]
        segments_N = self.segments_N[rows]
        return Outcomes(exact_N=exact_N, proven_N=proven_N, segments_N=segments_N)

    def score(self) -> Score:
        return Score(
            num_puzzles=len(self.exact_N),
            exact=float(self.exact_N.mean()),
            proven=float(self.proven_N.mean()),
            mean_segments=float(self.segments_N.mean()),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """Margin, verdict and exactness of every puzzle after every segment."""

    margin_SN: NDArray[np.float32]
    verdict_SN: NDArray[np.int8]
    exact_SN: NDArray[np.bool_]
    ratings_N: NDArray[np.int32] | None = None

    @property
    def num_segments(self) -> int:
        return len(self.margin_SN)

    def classes(self) -> dict[str, NDArray[np.bool_]]:
        """Masks of all puzzles and, if ratings are known, of each difficulty that occurs."""
        num_puzzles = self.margin_SN.shape[1]
        found = {ALL: np.ones(num_puzzles, np.bool_)}
        if self.ratings_N is None:
            return found
        for name, (low, high) in RATING_CLASSES.items():
            is_in_class_N = (self.ratings_N >= low) & (self.ratings_N <= high)
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
        exact_N = self.exact_SN[last]
        proven_N = self.verdict_SN[last] == RIGHT
        segments_N = index_N.astype(np.int32) + 1
        return Outcomes(exact_N=exact_N, proven_N=proven_N, segments_N=segments_N)


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
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    num_segments: int,
    *,
    end_s: float = math.inf,
    progress: OnProgress = unheard,
    at_the_end: Callable[[slice, StepOutput], None] | None = None,
) -> Rollout:
    """Run every puzzle through all segments, as many at a time as the engine has slots.

    The puzzles of a step that are running at the monotonic time `end_s` are the last ones.
    `at_the_end` receives the last segment's output for each part of the questions.
    """
    num_puzzles = len(questions)
    num_done = 0
    shape = (num_segments, num_puzzles)
    margin_SN = np.zeros(shape, np.float32)
    verdict_SN = np.zeros(shape, np.int8)
    exact_SN = np.zeros(shape, np.bool_)
    for start in range(0, num_puzzles, engine.num_slots):
        end = min(start + engine.num_slots, num_puzzles)
        part = slice(start, end)
        tokens_BT = questions.tokens_NT[part]
        labels_BT = questions.labels_NT[part]
        for slot, puzzle_id in enumerate(questions.puzzle_ids_N[part]):
            engine.load(slot, tokens_BT[slot], puzzle_table[puzzle_id])
        for segment in range(num_segments):
            output = engine.step(end - start)
            is_right_BT = (output.answer_BT == labels_BT) | (labels_BT < 0)
            margin_SN[segment, part] = output.halt_margin_B
            verdict_SN[segment, part] = puzzle.check_BT(tokens_BT, output.answer_BT)
            exact_SN[segment, part] = is_right_BT.all(axis=1)
            if at_the_end and segment == num_segments - 1:
                at_the_end(part, output)
        num_done = end
        progress(num_done, num_puzzles)
        if time.monotonic() >= end_s:
            break
    done = slice(num_done)
    ratings_N = questions.ratings_N
    if ratings_N is not None:
        ratings_N = ratings_N[done]
    return Rollout(
        margin_SN=margin_SN[:, done],
        verdict_SN=verdict_SN[:, done],
        exact_SN=exact_SN[:, done],
        ratings_N=ratings_N,
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
    counts: list[int] = []
    count = 1
    while count < last:
        counts.append(count)
        count *= 2
    counts.append(last)
    points: list[PolicyScore] = []
    for count in counts:
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
    limit = rollout.num_segments
    return HaltingPolicy(kind="learned", threshold=threshold, max_segments=limit)


def choose(curve: Sequence[PolicyScore], max_loss: float) -> PolicyScore:
    """The point with the fewest segments that loses at most `max_loss` against the last point.

    `max_loss` is a share of exact solves.
    """
    required = curve[-1].total.exact - max_loss - ROUNDING
    good = [point for point in curve if point.total.exact >= required]
    return min(good, key=lambda point: (point.total.mean_segments, -point.total.exact))


@dataclass(frozen=True, kw_only=True)
class HaltingReport:
    """How the policies of one model compare.

    `chosen` is the point of the `learned` curve that `choose` picks for `max_loss`. `verified` is
    None if answers cannot be proven. `cells` is the share of right cells among the open ones, by
    difficulty, and `pass_at` the share of tasks solved by k voted answers, both after all segments.
    """

    model: str
    precision: str
    num_segments: int
    max_loss: float
    verified: PolicyScore | None
    plain: PolicyScore
    chosen: PolicyScore
    fixed: list[PolicyScore]
    learned: list[PolicyScore]
    cells: dict[str, float]
    pass_at: dict[int, float]

    def rows(self) -> list[list[str]]:
        """The table, head first: one row for each policy, one column for each difficulty."""
        classes = self.plain.scores
        head = ["halting"]
        cells = ["open cells"]
        for name, score in classes.items():
            head.append(f"{name} ({score.num_puzzles})")
            cells.append(f"{100 * self.cells[name]:.1f}")
        rows = [head]
        for label, point in self.labelled():
            rows.append([label, *map(str, point.scores.values())])
        rows.append(cells)
        return rows

    def labelled(self) -> list[tuple[str, PolicyScore]]:
        points: list[tuple[str, PolicyScore]] = []
        if self.verified is not None:
            points.append(("verified", self.verified))
        points.append(("learned > 0", self.plain))
        points.append((f"calibrated > {self.chosen.policy.threshold:.3g}", self.chosen))
        for point in self.fixed:
            points.append((f"fixed {point.policy.max_segments}", point))
        return points

    def caption(self) -> str:
        passes = [f" pass@{k} {100 * share:.1f} %." for k, share in self.pass_at.items()]
        points = 100 * self.max_loss
        return (
            f"{self.model} ({self.precision}): exact solves in % / mean segments, by rating "
            f"(number of puzzles). The calibrated margin loses at most {points:g} points against "
            f"all {self.num_segments} segments."
        ) + "".join(passes)

    def markdown(self) -> str:
        rows = self.rows()
        rule = "|---" * len(rows[0]) + "|"
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, rule)
        return "\n".join([*lines, "", self.caption()])

    def table(self) -> Table:
        head, *rows = self.rows()
        table = Table(*head, caption=self.caption(), caption_justify="left")
        for row in rows:
            table.add_row(*row)
        return table


def report_on(
    rollout: Rollout,
    *,
    model: str,
    precision: str,
    max_loss: float,
    cells_N: NDArray[Any],
    pass_at: Mapping[int, float],
) -> HaltingReport:
    """Score every policy on one rollout."""
    learned = learned_curve(rollout)
    verified = None
    if (rollout.verdict_SN != UNKNOWN).any():
        limit = rollout.num_segments
        policy = HaltingPolicy(kind="verified", max_segments=limit)
        verified = score_policy(rollout, policy)
    cells: dict[str, float] = {}
    for name, is_in_class_N in rollout.classes().items():
        cells[name] = float(cells_N[is_in_class_N].mean())
    return HaltingReport(
        model=model,
        precision=precision,
        num_segments=rollout.num_segments,
        max_loss=max_loss,
        verified=verified,
        plain=score_policy(rollout, learned_policy(rollout)),
        chosen=choose(learned, max_loss),
        fixed=fixed_scores(rollout),
        learned=learned,
        cells=cells,
        pass_at=dict(pass_at),
    )
