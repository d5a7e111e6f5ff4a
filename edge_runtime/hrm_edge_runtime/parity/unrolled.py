"""Compare the unrolled graph of a bundle with the runtime's loop over the same form of the step."""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.parity.comparison import ParityOptions, questions_for
from hrm_edge_runtime.parity.walk import run_questions
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

BY_NUMBER = attrgetter("attempt_id")
ROUNDED_OTHERWISE = 0.01
"""Share of puzzles that may differ below float32.

The loop rounds between two segments; ONNX Runtime joins the casts over that border.
"""


@dataclass(frozen=True, kw_only=True)
class UnrolledReport:
    """How many puzzles have another answer or number of segments, and the largest margin gap."""

    precision: str
    num_puzzles: int
    different_answers: int
    different_segments: int
    margin_gap: float

    @property
    def passed(self) -> bool:
        different = max(self.different_answers, self.different_segments)
        if self.precision == "fp32":
            return different == 0
        return different <= ROUNDED_OTHERWISE * self.num_puzzles

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "broken"
        return (
            f"{verdict}: of {self.num_puzzles} puzzles, {self.different_answers} have another "
            f"answer and {self.different_segments} another number of segments than in the loop; "
            f"the margins are at most {self.margin_gap:.2g} apart."
        )


def compare_loop(bundle: Bundle, options: ParityOptions, stages: Stages) -> UnrolledReport:
    """Run both under the learned rule, the only one that a graph knows."""
    from hrm_edge_runtime.engines.onnx import OnnxEngine  # a Jetson has no ONNX Runtime
    from hrm_edge_runtime.engines.unrolled import UnrolledEngine

    if options.against is not None or options.checkpoint is not None:
        raise ValueError(
            "an unrolled graph is compared with the loop over its own step graph: "
            "omit --against and --checkpoint."
        )
    precision = choose(bundle, options.engine).precision
    questions = questions_for(bundle, options, stages)
    num_slots = min(options.slots, len(questions))
    threads = options.threads
    policy = bundle.manifest.halting_policy(precision)
    kind = "fixed" if policy.kind == "fixed" else "learned"
    unrolled = UnrolledEngine(bundle, precision=precision, num_slots=num_slots, num_threads=threads)
    with closing(unrolled):
        policy = replace(policy, kind=kind, max_segments=unrolled.num_segments)
        ours = _answers(unrolled, bundle, questions, policy)
    step = OnnxEngine(bundle.graph_path(precision), num_slots=num_slots, num_threads=threads)
    with closing(step):
        theirs = _answers(step, bundle, questions, policy)
    return _report(precision, ours, theirs)


def _answers(
    engine: Engine, bundle: Bundle, questions: Questions, policy: HaltingPolicy
) -> list[Attempt]:
    """Every attempt, in the order of the questions."""
    ended = run_questions(engine, bundle.puzzle, questions, bundle.puzzle_table, policy)
    return sorted(ended, key=BY_NUMBER)


def _is_same(our_T: Int32 | None, their_T: Int32 | None) -> bool:
    if our_T is None or their_T is None:
        return our_T is their_T
    return np.array_equal(our_T, their_T)


def _report(precision: str, ours: list[Attempt], theirs: list[Attempt]) -> UnrolledReport:
    different_answers = 0
    different_segments = 0
    margin_gaps: list[float] = []
    for our, their in zip(ours, theirs, strict=True):
        different_answers += not _is_same(our.answer_T, their.answer_T)
        different_segments += our.segments != their.segments
        margin_gaps.append(abs(our.margin - their.margin))
    return UnrolledReport(
        precision=precision,
        num_puzzles=len(ours),
        different_answers=different_answers,
        different_segments=different_segments,
        margin_gap=max(margin_gaps),
    )
