"""The accuracy of a model on held-out puzzles: one model under every policy, or two side by side.

Read `accuracy_of`. Shapes: N puzzles, T tokens, P rows of the puzzle table, E puzzle-vector size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from hrm_edge_runtime.contract import shipped
from hrm_edge_runtime.contract.halting import HaltingPolicy, usual_kind
from hrm_edge_runtime.engines.engine import Engine, Float32
from hrm_edge_runtime.engines.factory import choose as choose_engine
from hrm_edge_runtime.engines.factory import engine_for
from hrm_host.machine import num_cores
from hrm_host.progress import Stages
from hrm_host.reading import counted
from hrm_parity.halting_curve import (
    PolicyScore,
    Rollout,
    choose,
    fixed_scores,
    learned_curve,
    learned_policy,
    roll_out,
    score_policy,
)
from hrm_parity.outcomes import Paired, Score, num_deciding, paired
from hrm_puzzles.data.datasets import identifiers_at
from hrm_puzzles.data.sources import Questions, find_questions
from hrm_puzzles.puzzle import UNKNOWN, Puzzle, Voting

NUM_FRESH = 1000
"""Puzzles to generate if neither a data set nor a number is given."""


class Subject(NamedTuple):
    """An opened model under evaluation; `precision` names what runs it."""

    name: str
    precision: str
    puzzle: Puzzle
    puzzle_table_PE: Float32
    max_segments: int
    engine: Engine

    def held_out(
        self,
        source: str,
        count: int | None,
        columns: str | None,
        stages: Stages,
    ) -> Questions:
        """Puzzles of a data set, a file or, by the puzzle's name, fresh ones; see `hrm-eval`."""
        if count is None:
            count = sys.maxsize if Path(source).exists() else NUM_FRESH
        questions = find_questions(
            source,
            self.puzzle,
            count=count,
            columns=columns,
            num_workers=num_cores(),
            progress=partial(stages.show, "making puzzles"),
        )
        questions.require_ids(len(self.puzzle_table_PE))
        return questions

    def rollout(self, questions: Questions, stages: Stages) -> Rollout:
        return roll_out(
            self.engine,
            self.puzzle,
            self.puzzle_table_PE,
            questions,
            self.max_segments,
            progress=partial(stages.show, "puzzles", note=self.name),
        )


def open_bundle(
    name: str,
    *,
    engine: str,
    num_slots: int,
    num_threads: int | None,
    max_segments: int | None,
) -> Subject:
    bundle = shipped.open_bundle(name)
    choice = choose_engine(bundle, engine, num_slots=num_slots)
    opened = engine_for(bundle, engine=str(choice), num_slots=num_slots, num_threads=num_threads)
    return Subject(
        name=bundle.manifest.name,
        precision=str(choice),
        puzzle=bundle.puzzle,
        puzzle_table_PE=bundle.puzzle_table,
        max_segments=max_segments or bundle.manifest.max_segments,
        engine=opened,
    )


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How the policies of one model compare.

    `chosen` is the point of the `learned` curve that `choose` picks for `max_loss`. `verified` is
    None if answers cannot be proven. `pass_at` is the share of tasks that k votes solve after
    all segments.
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
    pass_at: dict[int, float]

    def rows(self) -> list[list[str]]:
        """The table, head first: one row for each policy, one column for each difficulty."""
        classes = [f"{name} ({score.num_puzzles})" for name, score in self.plain.scores.items()]
        points = {"learned > 0": self.plain}
        if self.verified is not None:
            points = {"verified": self.verified, **points}
        points[f"calibrated > {self.chosen.policy.threshold:.3g}"] = self.chosen
        for point in self.fixed:
            points[f"fixed {point.policy.max_segments}"] = point
        rows = [["halting", *classes]]
        for label, point in points.items():
            rows.append([label, *map(str, point.scores.values())])
        return rows

    def caption(self) -> str:
        passes = [f" pass@{k} {100 * share:.1f} %." for k, share in self.pass_at.items()]
        points = 100 * self.max_loss
        return (
            f"{self.model} ({self.precision}): exact solves in % / mean segments, by rating "
            f"(number of puzzles). The calibrated margin loses at most {points:g} points against "
            f"all {self.num_segments} segments."
        ) + "".join(passes)


def accuracy_of(subject: Subject, rollout: Rollout, data: Path, max_loss: float) -> Accuracy:
    """Score each policy on one rollout; `data` names the tasks whose variants vote."""
    learned = learned_curve(rollout)
    verified = None
    if (rollout.verdict_SN != UNKNOWN).any():
        policy = HaltingPolicy(kind="verified", max_segments=rollout.num_segments)
        verified = score_policy(rollout, policy)
    return Accuracy(
        model=subject.name,
        precision=subject.precision,
        num_segments=rollout.num_segments,
        max_loss=max_loss,
        verified=verified,
        plain=score_policy(rollout, learned_policy(rollout)),
        chosen=choose(learned, max_loss),
        fixed=fixed_scores(rollout),
        learned=learned,
        pass_at=_pass_at(subject.puzzle, data, rollout),
    )


def _pass_at(puzzle: Puzzle, data: Path, rollout: Rollout) -> dict[int, float]:
    """Tasks solved within k answers if the variants of a task vote; empty for other puzzles."""
    if not isinstance(puzzle, Voting) or not data.is_dir():
        return {}
    questions = rollout.questions
    identifiers = identifiers_at(data)
    names = [identifiers[number] for number in questions.puzzle_ids_N.tolist()]
    answers_NT = rollout.answers_NT
    shares = puzzle.pass_at(
        names, questions.tokens_NT, questions.labels_NT, answers_NT, rollout.q_halt_N
    )
    return dict(shares)


@dataclass(frozen=True)
class ModelScore:
    model: str
    precision: str
    score: Score


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Two models; the differences are losses of the second, with intervals of 95 %."""

    first: ModelScore
    second: ModelScore
    proven: Paired | None  # None if no proof exists
    exact: Paired

    def rows(self) -> list[list[str]]:
        """The table, head first."""
        sides = (self.first, self.second)
        rows = [["", *(side.model for side in sides), "second − first (95 %)"]]
        for name, difference in (("proven", self.proven), ("exact", self.exact)):
            if difference is not None:
                rows.append([name, *_cells(difference)])
        means = [f"{side.score.mean_segments:.1f}" for side in sides]
        return [*rows, ["mean segments", *means, ""]]

    def caption(self) -> str:
        """Which model is better by the interval, or how many puzzles would decide."""
        name = "exact" if self.proven is None else "proven"
        decisive = self.proven or self.exact
        over = f"over {counted(decisive.num_puzzles, 'puzzle')}"
        counts = f"{decisive.num_lost} only by the first, {decisive.num_won} only by the second"
        if decisive.high < 0:
            return f"the second model is better {over}; {name}: {counts}"
        if decisive.low > 0:
            return f"the first model is better {over}; {name}: {counts}"
        needed = num_deciding(decisive, max_loss=0)
        end = "more puzzles would not decide soon"
        if needed is not None:
            end = f"about {needed:,} puzzles would decide"
        return f"undecided {over}; {name}: {counts}; {end}"


def _cells(difference: Paired) -> list[str]:
    gain = -100 * difference.loss
    low = -100 * difference.high
    high = -100 * difference.low
    shares = [difference.reference, difference.ours]
    texts = [f"{100 * share:.1f} %" for share in shares]
    return [*texts, f"{gain:+.1f} ({low:+.1f} to {high:+.1f}) points"]


def side_by_side(first: Subject, theirs: Rollout, second: Subject, ours: Rollout) -> SideBySide:
    """Compare two models of one board, each halting at a proof, or by itself if none exists."""
    has_proofs = first.puzzle.proof_exists
    policy = HaltingPolicy(kind=usual_kind(proof_exists=has_proofs))
    reference = theirs.under(replace(policy, max_segments=theirs.num_segments))
    candidate = ours.under(replace(policy, max_segments=ours.num_segments))
    proven = None
    if has_proofs:
        proven = paired(reference.proven_N, candidate.proven_N)
    return SideBySide(
        first=ModelScore(first.name, first.precision, reference.score()),
        second=ModelScore(second.name, second.precision, candidate.score()),
        proven=proven,
        exact=paired(reference.exact_N, candidate.exact_N),
    )


def table(rows: Sequence[Sequence[str]], caption: str) -> Table:
    head, *others = rows
    shown = Table(*head, caption=caption, caption_justify="left")
    for row in others:
        shown.add_row(*row)
    return shown
