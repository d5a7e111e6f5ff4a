"""What each halting policy costs and saves, counted from one run of every puzzle through all segments.

The rule applied afterwards is the very function that the server calls, on margins from the very engine it runs.
Shapes: N puzzles, B slots, S segments, T tokens, E puzzle-vector size.
"""

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

RATING_CLASSES = {"0": (0, 0), "1-9": (1, 9), "10-19": (10, 19), "20-49": (20, 49), "50+": (50, np.inf)}
"""Difficulty by rating, bounds included."""
ALL = "all"
NUM_THRESHOLDS = 65


@dataclass(frozen=True, kw_only=True)
class Score:
    """Shares of puzzles whose last answer equals the label, or carries a proof, and the mean of segments spent."""

    num_puzzles: int
    exact: float
    proven: float
    mean_segments: float

    def __str__(self) -> str:
        return f"{100 * self.exact:.1f} / {self.mean_segments:.1f}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """How each puzzle ended under a policy; `exact_N` where the last answer equals the label."""

    exact_N: NDArray[np.bool_]
    proven_N: NDArray[np.bool_]
    segments_N: NDArray[np.int32]

    def at(self, rows: slice | NDArray[np.bool_]) -> "Outcomes":
        return Outcomes(**{name: values_N[rows] for name, values_N in vars(self).items()})

    @classmethod
    def joined(cls, parts: "Sequence[Outcomes]") -> "Outcomes":
        return cls(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})

    def score(self) -> Score:
        return Score(
            num_puzzles=len(self.exact_N),
            exact=float(self.exact_N.mean()),
            proven=float(self.proven_N.mean()),
            mean_segments=float(self.segments_N.mean()),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """What every puzzle said after every segment; `exact_SN` where the answer equals the label."""

    margin_SN: NDArray[np.float32]
    verdict_SN: NDArray[np.int8]
    exact_SN: NDArray[np.bool_]
    ratings_N: NDArray[np.int32] | None = None

    @property
    def num_segments(self) -> int:
        return len(self.margin_SN)

    def classes(self) -> dict[str, NDArray[np.bool_]]:
        """The puzzles of each difficulty that there is, where ratings are known."""
        found = {ALL: np.ones(self.margin_SN.shape[1], np.bool_)}
        if self.ratings_N is not None:
            rated = {
                name: (self.ratings_N >= low) & (self.ratings_N <= high) for name, (low, high) in RATING_CLASSES.items()
            }
            found |= {name: chosen_N for name, chosen_N in rated.items() if chosen_N.any()}
        return found

    def under(self, policy: HaltingPolicy) -> Outcomes:
        """Where each puzzle would have stopped, and what it had answered by then."""
        segment_S1 = np.arange(1, self.num_segments + 1)[:, None]
        stops_SN = stops_B(self.margin_SN, segment_S1, self.verdict_SN, policy)
        assert stops_SN.any(axis=0).all(), "a policy may not run longer than the rollout"
        index_N = stops_SN.argmax(axis=0)
        last = (index_N, np.arange(len(index_N)))
        segments_N = index_N.astype(np.int32) + 1
        return Outcomes(exact_N=self.exact_SN[last], proven_N=self.verdict_SN[last] == RIGHT, segments_N=segments_N)


@dataclass(frozen=True, kw_only=True)
class PolicyScore:
    """A policy with its score on all puzzles and on each difficulty that there is."""

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
    progress: OnProgress = unheard,
    at_the_end: Callable[[slice, StepOutput], None] | None = None,
) -> Rollout:
    """Run every puzzle through all segments, as many at a time as the engine has slots.

    `at_the_end` sees what the last segment said of each part of the questions.
    """
    shape = (num_segments, len(questions))
    margin_SN, verdict_SN, exact_SN = np.zeros(shape, np.float32), np.zeros(shape, np.int8), np.zeros(shape, np.bool_)
    for start in range(0, len(questions), engine.num_slots):
        part = slice(start, min(start + engine.num_slots, len(questions)))
        tokens_BT, labels_BT = questions.tokens_NT[part], questions.labels_NT[part]
        for slot, (tokens_T, puzzle_id) in enumerate(zip(tokens_BT, questions.puzzle_ids_N[part], strict=True)):
            engine.load(slot, tokens_T, puzzle_table[puzzle_id])
        for segment in range(num_segments):
            output = engine.step(len(tokens_BT))
            margin_SN[segment, part] = output.halt_margin_B
            verdict_SN[segment, part] = puzzle.check_BT(tokens_BT, output.answer_BT)
            exact_SN[segment, part] = ((output.answer_BT == labels_BT) | (labels_BT < 0)).all(axis=1)
            if at_the_end and segment == num_segments - 1:
                at_the_end(part, output)
        progress(part.stop, len(questions))
    return Rollout(margin_SN=margin_SN, verdict_SN=verdict_SN, exact_SN=exact_SN, ratings_N=questions.ratings_N)


def score_policy(rollout: Rollout, policy: HaltingPolicy) -> PolicyScore:
    outcomes = rollout.under(policy)
    scores = {name: outcomes.at(chosen_N).score() for name, chosen_N in rollout.classes().items()}
    return PolicyScore(policy=policy, scores=scores)


def fixed_scores(rollout: Rollout) -> list[PolicyScore]:
    """Stopping after 1, 2, 4 ... and after all segments."""
    last = rollout.num_segments
    counts = (*(2**power for power in range(last.bit_length()) if 2**power < last), last)
    return [score_policy(rollout, HaltingPolicy(kind="fixed", max_segments=count)) for count in counts]


def learned_curve(rollout: Rollout) -> list[PolicyScore]:
    """The learned rule at 0 and at quantiles of the margins seen, rising: under the last no puzzle halts early."""
    quantiles = np.quantile(rollout.margin_SN, np.linspace(0, 1, NUM_THRESHOLDS), method="higher")
    limit = rollout.num_segments
    return [
        score_policy(rollout, HaltingPolicy(kind="learned", threshold=threshold, max_segments=limit))
        for threshold in sorted({0.0, *quantiles.tolist()})
    ]


def choose(curve: Sequence[PolicyScore], max_loss: float) -> PolicyScore:
    """The point of fewest segments that loses at most the share `max_loss` of exact solves against the last one."""
    least = curve[-1].total.exact - max_loss - 1e-9
    good = (point for point in curve if point.total.exact >= least)
    return min(good, key=lambda point: (point.total.mean_segments, -point.total.exact))


@dataclass(frozen=True, kw_only=True)
class HaltingReport:
    """How the policies of one model compare.

    `chosen` is the point of the `learned` curve of fewest segments that loses at most the share `max_loss`. `cells` are
    the right ones among the open, by difficulty, and `pass_at` the tasks solved by so many voted answers, after all
    segments.
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
        """The table with its head: one row for each policy, one column for each difficulty."""
        classes = self.plain.scores
        rows = [] if self.verified is None else [("verified", self.verified)]
        rows += [("learned > 0", self.plain), (f"calibrated > {self.chosen.policy.threshold:.3g}", self.chosen)]
        rows += [(f"fixed {point.policy.max_segments}", point) for point in self.fixed]
        head = ["halting", *(f"{name} ({score.num_puzzles})" for name, score in classes.items())]
        shown = [[label, *map(str, point.scores.values())] for label, point in rows]
        return [head, *shown, ["open cells", *(f"{100 * self.cells[name]:.1f}" for name in classes)]]

    def caption(self) -> str:
        return (
            f"{self.model} ({self.precision}): exact solves in % / mean segments, by rating (number of puzzles). The "
            f"calibrated margin loses at most {100 * self.max_loss:g} points against all {self.num_segments} segments."
            + "".join(f" pass@{k} {100 * share:.1f} %." for k, share in self.pass_at.items())
        )

    def markdown(self) -> str:
        head, *rows = ("| " + " | ".join(row) + " |" for row in self.rows())
        rule = "|---" * len(self.rows()[0]) + "|"
        return "\n".join([head, rule, *rows, "", self.caption()])

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
    """Score every policy on one rollout; `verified` only where answers can be proven."""
    fixed, learned, limit = fixed_scores(rollout), learned_curve(rollout), rollout.num_segments
    verified = score_policy(rollout, HaltingPolicy(kind="verified", max_segments=limit))
    return HaltingReport(
        model=model,
        precision=precision,
        num_segments=limit,
        max_loss=max_loss,
        verified=verified if (rollout.verdict_SN != UNKNOWN).any() else None,
        plain=score_policy(rollout, HaltingPolicy(kind="learned", max_segments=limit)),
        chosen=choose(learned, max_loss),
        fixed=fixed,
        learned=learned,
        cells={name: float(cells_N[chosen_N].mean()) for name, chosen_N in rollout.classes().items()},
        pass_at=dict(pass_at),
    )
