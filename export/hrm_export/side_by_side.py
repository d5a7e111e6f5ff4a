"""Compares two models on the same held-out puzzles, puzzle by puzzle. Read `compare`."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from rich.table import Table

from hrm_calibration.halting_curve import Outcomes, Score, learned_policy, roll_out
from hrm_calibration.paired import Paired, num_deciding, paired
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_export.eval_options import EvaluationOptions
from hrm_export.evaluation import Subject, held_out, subject_of
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions


@dataclass(frozen=True, kw_only=True)
class ModelScore:
    model: str
    precision: str
    score: Score


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """Two models; the differences are losses of the second, with intervals of 95 %."""

    first: ModelScore
    second: ModelScore
    proven: Paired | None  # None if no proof exists
    exact: Paired

    def rows(self) -> list[list[str]]:
        """The table, head first."""
        rows = [["", self.first.model, self.second.model, "second − first (95 %)"]]
        for name, difference in (("proven", self.proven), ("exact", self.exact)):
            if difference is not None:
                rows.append([name, *_cells(difference)])
        rows.append(["mean segments", *map(_mean_segments, (self.first, self.second)), ""])
        return rows

    def verdict(self) -> str:
        """Which model is better by the interval, or how many puzzles would decide."""
        name = "exact" if self.proven is None else "proven"
        decisive = self.proven or self.exact
        over = f"over {decisive.num_puzzles:,} puzzles"
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

    def markdown(self) -> str:
        rows = self.rows()
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|---" * len(rows[0]) + "|")
        return "\n".join([*lines, "", self.verdict()])

    def table(self) -> Table:
        head, *rows = self.rows()
        table = Table(*head, caption=self.verdict(), caption_justify="left")
        for row in rows:
            table.add_row(*row)
        return table


def _cells(difference: Paired) -> list[str]:
    gain = -100 * difference.loss
    low = -100 * difference.high
    high = -100 * difference.low
    shares = [difference.reference, difference.ours]
    texts = [f"{100 * share:.1f} %" for share in shares]
    return [*texts, f"{gain:+.1f} ({low:+.1f} to {high:+.1f}) points"]


def _mean_segments(side: ModelScore) -> str:
    return f"{side.score.mean_segments:.1f}"


def compare(options: EvaluationOptions, other: str, stages: Stages) -> ModelComparison:
    """Run both models on the puzzles of `--data`, each halting by proof or by itself.

    Raises ValueError if they solve different boards.
    """
    first = subject_of(options)
    with closing(first.engine):
        questions = held_out(first, options, stages)
        theirs = outcomes_of(first, questions, stages)
    second = subject_of(replace(options, source=other))
    with closing(second.engine):
        if second.puzzle.name != first.puzzle.name:
            raise ValueError(
                f"{first.name} solves {first.puzzle.name} and {second.name} {second.puzzle.name}; "
                "give two models of one board, or --board"
            )
        questions.require_ids(len(second.puzzle_table))
        ours = outcomes_of(second, questions, stages)
    proven = None
    if first.puzzle.proof_exists:
        proven = paired(theirs.proven_N, ours.proven_N)
    return ModelComparison(
        first=side_of(first, theirs),
        second=side_of(second, ours),
        proven=proven,
        exact=paired(theirs.exact_N, ours.exact_N),
    )


def outcomes_of(subject: Subject, questions: Questions, stages: Stages) -> Outcomes:
    """How each puzzle ends if the model halts at a proof, or by itself if none exists."""
    rollout = roll_out(
        subject.engine,
        subject.puzzle,
        subject.puzzle_table,
        questions,
        subject.max_segments,
        progress=partial(stages.show, f"puzzles, {subject.name}"),
    )
    policy = learned_policy(rollout)
    if subject.puzzle.proof_exists:
        policy = HaltingPolicy(kind="verified", max_segments=rollout.num_segments)
    return rollout.under(policy)


def side_of(subject: Subject, outcomes: Outcomes) -> ModelScore:
    return ModelScore(model=subject.name, precision=subject.precision, score=outcomes.score())
