"""How the halting policies of one bundle compare, as a table for a terminal or for a page, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from hrm_calibration.halting_curve import (
    PolicyScore,
    Rollout,
    choose,
    fixed_scores,
    learned_curve,
    score_policy,
    verified_score,
)
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_puzzles.puzzle import UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Report:
    """`chosen` is the point of the `learned` curve of fewest segments that loses at most the share `max_loss`."""

    model: str
    precision: str
    num_segments: int
    max_loss: float
    verified: PolicyScore | None
    plain: PolicyScore
    chosen: PolicyScore
    fixed: list[PolicyScore]
    learned: list[PolicyScore]

    def rows(self) -> list[tuple[str, PolicyScore]]:
        """Each policy by the name a reader would call it."""
        verified = [] if self.verified is None else [("verified", self.verified)]
        plain = ("learned > 0", self.plain)
        chosen = (f"calibrated > {self.chosen.policy.threshold:.3g}", self.chosen)
        return [*verified, plain, chosen, *((f"fixed {row.policy.max_segments}", row) for row in self.fixed)]

    def cells(self) -> list[list[str]]:
        """The table with its head."""
        classes = self.plain.scores
        head = ["halting", *(f"{name} ({score.num_puzzles})" for name, score in classes.items())]
        return [head, *([label, *(_cell(point, name) for name in classes)] for label, point in self.rows())]

    def caption(self) -> str:
        return (
            f"{self.model} ({self.precision}): exact solves in % / mean segments, by rating (number of puzzles). The "
            f"calibrated margin loses at most {100 * self.max_loss:g} points against all {self.num_segments} segments."
        )

    def markdown(self) -> str:
        head, *rows = ("| " + " | ".join(row) + " |" for row in self.cells())
        rule = "|---" * len(self.cells()[0]) + "|"
        return "\n".join([head, rule, *rows, "", self.caption()])

    def table(self) -> Table:
        head, *rows = self.cells()
        table = Table(*head, caption=self.caption(), caption_justify="left")
        for row in rows:
            table.add_row(*row)
        return table

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report_on(rollout: Rollout, *, model: str, precision: str, max_loss: float) -> Report:
    """Scores every policy on one rollout; `verified` only where answers can be proven."""
    fixed, learned = fixed_scores(rollout), learned_curve(rollout)
    return Report(
        model=model,
        precision=precision,
        num_segments=rollout.num_segments,
        max_loss=max_loss,
        verified=verified_score(rollout) if (rollout.verdict_SN != UNKNOWN).any() else None,
        plain=score_policy(rollout, HaltingPolicy(kind="learned", max_segments=rollout.num_segments)),
        chosen=choose(learned, fixed[-1].total.exact, max_loss),
        fixed=fixed,
        learned=learned,
    )


def _cell(point: PolicyScore, name: str) -> str:
    score = point.scores[name]
    return f"{100 * score.exact:.1f} / {score.mean_segments:.1f}"
