"""What came of the puzzles: a record of each, and their counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.schema import SolveAnswer
from hrm_edge_runtime.solve.client import ServerError
from hrm_edge_runtime.solve.reading import Entry
from hrm_edge_runtime.solve.solvers import Outcome

Record = Mapping[str, Any]


def record_of(entry: Entry, outcome: Outcome) -> Record:
    """A line of an output file: which puzzle, and its `answer` or `error`, as in a line of /solve/batch."""
    return {"number": entry.number, "puzzle": entry.puzzle, **_body(outcome)}


def json_line(outcome: Outcome) -> str:
    """The answer itself, or the refusal as a server would write it."""
    body = _body(outcome)
    return json.dumps(body.get("answer", body))


def text_line(outcome: Outcome) -> str:
    """The solution alone; a remark that begins with # where there is none."""
    if isinstance(outcome, ServiceError):
        return f"# refused: {outcome.message}; {outcome.remedy}."
    if isinstance(outcome, ServerError):
        return f"# refused: {outcome}"
    solution = outcome.solution if isinstance(outcome.solution, str) else json.dumps(outcome.solution)
    return solution if outcome.solved else f"# {summary(outcome)}"


def summary(answer: SolveAnswer) -> str:
    """How an answer came about, for people."""
    verdict = {True: "solved, proven right", False: "not solved", None: "no proof exists"}[answer.verified]
    plural = "" if answer.segments == 1 else "s"
    cost = f"{answer.segments} segment{plural}, {answer.compute_ms:.0f} ms, margin {answer.margin:.2f}"
    if answer.attempts > 1:
        cost = f"{answer.attempts} attempts with {answer.total_segments} segments, {cost}"
    return f"{verdict}: {cost}, {answer.model}"


@dataclass(kw_only=True)
class Tally:
    """Counts over records; `refused` is by reason."""

    solved: int = 0
    proven: int = 0
    not_solved: int = 0
    total_segments: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])

    def add(self, record: Record) -> None:
        if (answer := record.get("answer")) is None:
            self.refused[record["error"]["reason"]] += 1
            return
        self.solved += answer["solved"]
        self.proven += answer["verified"] is True
        self.not_solved += not answer["solved"]
        self.total_segments += answer["total_segments"]

    @property
    def num_answers(self) -> int:
        return self.solved + self.not_solved

    @property
    def num_puzzles(self) -> int:
        return self.num_answers + self.refused.total()

    @property
    def mean_segments(self) -> float:
        return self.total_segments / max(1, self.num_answers)

    def text(self) -> str:
        """All counts in one line."""
        proven = ", all proven" if self.proven == self.solved else f", {self.proven} of them proven"
        said = [f"{self.solved} solved{proven if self.solved else ''}", f"{self.not_solved} not solved"]
        if self.refused:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common())
            said.append(f"{self.refused.total()} refused ({reasons})")
        return f"{self.num_puzzles} puzzles: {', '.join(said)}; {self.mean_segments:.1f} segments on average"

    def as_json(self) -> str:
        counts = {"puzzles": self.num_puzzles, "solved": self.solved, "proven": self.proven}
        more = {"not_solved": self.not_solved, "refused": dict(self.refused), "mean_segments": self.mean_segments}
        return json.dumps({**counts, **more})


def _body(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, SolveAnswer):
        return {"answer": outcome.model_dump(mode="json")}
    return outcome.body() if isinstance(outcome, ServiceError) else {"error": outcome.detail.model_dump(mode="json")}
