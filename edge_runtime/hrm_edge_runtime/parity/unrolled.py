"""Does the unrolled graph of a bundle answer in one call what the runtime's loop answers segment by segment?"""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.parity.comparison import ParityOptions, questions_for
from hrm_edge_runtime.parity.walk import run_questions
from hrm_host.progress import Stages

BY_NUMBER = attrgetter("attempt_id")
ROUNDED_OTHERWISE = 0.01
"""Share of puzzles below float32: ONNX Runtime joins casts over the border of two segments, where the loop rounds."""


@dataclass(frozen=True, kw_only=True)
class UnrolledReport:
    """Of `num_puzzles`, how many the graph answers otherwise, or after another number of segments."""

    precision: str
    num_puzzles: int
    different_answers: int
    different_segments: int
    margin_gap: float

    @property
    def passed(self) -> bool:
        allowed = 0 if self.precision == "fp32" else ROUNDED_OTHERWISE * self.num_puzzles
        return max(self.different_answers, self.different_segments) <= allowed

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        return (
            f"{'passed' if self.passed else 'broken'}: of {self.num_puzzles} puzzles {self.different_answers} are "
            f"answered otherwise and {self.different_segments} after another number of segments than by the loop; "
            f"the margins are at most {self.margin_gap:.2g} apart."
        )


def compare_loop(bundle: Bundle, options: ParityOptions, stages: Stages) -> UnrolledReport:
    """Run both under the learned rule, the only one that a graph knows, over the same form of the step."""
    from hrm_edge_runtime.engines.onnx import OnnxEngine  # a Jetson has no ONNX Runtime
    from hrm_edge_runtime.engines.unrolled import UnrolledEngine

    if options.against is not None or options.checkpoint is not None:
        raise ValueError(
            "an unrolled graph is compared with the loop over its own step graph; leave the others out."
        )
    precision, questions = (
        choose(bundle, options.engine).precision,
        questions_for(bundle, options, stages),
    )
    settings: dict[str, Any] = {
        "num_slots": min(options.slots, len(questions)),
        "num_threads": options.threads,
    }
    policy = bundle.manifest.halting_policy(precision)
    unrolled = UnrolledEngine(bundle, precision=precision, **settings)
    kind = "fixed" if policy.kind == "fixed" else "learned"
    policy = replace(policy, kind=kind, max_segments=unrolled.num_segments)
    step = OnnxEngine(bundle.graph_path(precision), **settings)
    with closing(unrolled), closing(step):
        ended = (
            sorted(
                run_questions(engine, bundle.puzzle, questions, bundle.puzzle_table, policy),
                key=BY_NUMBER,
            )
            for engine in (unrolled, step)
        )
        pairs = list(zip(*ended, strict=True))
    return UnrolledReport(
        precision=precision,
        num_puzzles=len(pairs),
        different_answers=sum(
            not np.array_equal(our.answer_T, their.answer_T) for our, their in pairs
        ),
        different_segments=sum(our.segments != their.segments for our, their in pairs),
        margin_gap=max(abs(our.margin - their.margin) for our, their in pairs),
    )
