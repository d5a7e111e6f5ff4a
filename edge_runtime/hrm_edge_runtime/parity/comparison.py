"""One comparison from its request to its findings: who is compared with whom, on which puzzles, under which gates."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.parity import desktop
from hrm_edge_runtime.parity.diagnosis import reasons_of
from hrm_edge_runtime.parity.gates import DEFAULT_FILE, Gates, read_gates
from hrm_edge_runtime.parity.golden import golden_questions, golden_side
from hrm_edge_runtime.parity.judging import Break, breaks, not_judged
from hrm_edge_runtime.parity.report import ParityReport, report_of
from hrm_edge_runtime.parity.walk import Course, Side, walk
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.held_out import Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Held-out puzzles where none are asked for: minutes on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What hrm-parity was asked for; `against` is an engine, a checkpoint or (None) the golden traces."""

    bundle: Bundle
    candidate: Choice
    against: Choice | Path | None
    questions: Questions
    is_golden: bool
    num_slots: int
    gates_file: Path = DEFAULT_FILE
    num_threads: int | None = None
    bisect: bool = False

    @property
    def course(self) -> Course:
        """Golden puzzles run as far as their traces, others until both sides have halted."""
        if self.is_golden:
            return Course(num_segments=len(self.bundle.golden().answer_SBT), to_the_end=True)
        return Course(num_segments=self.bundle.manifest.max_segments, to_the_end=False)

    @property
    def gates(self) -> Gates:
        kind: Literal["golden", "live"] = "golden" if self.against is None else "live"
        return read_gates(self.gates_file, self.candidate.precision, kind)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The report with what broke, what was found out about it, and the node that a bisection names."""

    report: ParityReport
    gates: Gates
    breaks: list[Break]
    reasons: list[str]
    bisection: str | None

    @property
    def verdict(self) -> str:
        """Passed or broken, and what was not judged."""
        left_out = not_judged(self.report, self.gates)
        more = f" (not judged, since an engine keeps its carry to itself: {', '.join(left_out)})" if left_out else ""
        return ("broken" if self.breaks else "passed: every gate holds") + more

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": not self.breaks,
            "not_judged": not_judged(self.report, self.gates),
            "breaks": [str(one) for one in self.breaks],
            "reasons": self.reasons,
            "bisection": self.bisection,
            "gates": self.gates.model_dump(exclude_none=True),
            **self.report.as_json(),
        }


def request_of(
    bundle: Bundle,
    *,
    engine: str,
    against: str | None,
    checkpoint: Path | None,
    data: Path | None,
    puzzles: int | None,
    seed: int,
    num_slots: int,
    progress: OnProgress = unheard,
    **more: Any,
) -> Request:
    """Read the options together; refuses what contradicts itself. `progress` hears of puzzles that are made."""
    if against is not None and checkpoint is not None:
        raise ValueError("a comparison has one reference; give either --against or --checkpoint.")
    candidate = prepare(bundle, engine, num_slots=num_slots)
    reference = prepare(bundle, against, num_slots=num_slots) if against is not None else checkpoint
    is_golden = data is None and puzzles is None
    if reference is None and not is_golden:
        reference = prepare(bundle, "cpu:fp32", num_slots=num_slots)
    if reference == candidate:
        raise ValueError(f"{candidate} would be compared with itself; give --against or --checkpoint.")
    return Request(
        bundle=bundle,
        candidate=candidate,
        against=reference,
        questions=_questions(bundle, data, puzzles, seed, progress),
        is_golden=is_golden,
        num_slots=num_slots,
        **more,
    )


def _questions(bundle: Bundle, data: Path | None, puzzles: int | None, seed: int, progress: OnProgress) -> Questions:
    if data is not None:
        questions = questions_from_data(data, bundle.puzzle, puzzles or NUM_PUZZLES, seed)
        questions.require_ids(bundle.manifest.num_puzzle_ids)
        return questions
    if puzzles is not None:
        return questions_made(bundle.puzzle, puzzles, seed=seed, num_workers=os.cpu_count() or 1, progress=progress)
    return golden_questions(bundle.golden())


def compare_engines(request: Request, progress: Callable[[int], object] | None = None) -> Findings:
    """Run the comparison, judge it, and where it breaks look for the reason."""
    bundle = request.bundle
    gates = request.gates
    with _sides(request) as (reference, candidate):
        tally = walk(reference, candidate, request.questions, bundle.puzzle, request.course, progress=progress)
        report = report_of(
            tally,
            reference=reference.name,
            candidate=candidate.name,
            puzzles=request.questions.source,
            proof_exists=bundle.puzzle.proof_exists,
        )
        broken = breaks(report, gates)
        reasons = reasons_of(broken[0], reference, candidate, request.questions, bundle) if broken else []
        bisection = _bisected(request, broken, reference) if request.bisect else None
    return Findings(report=report, gates=gates, breaks=broken, reasons=reasons, bisection=bisection)


@contextmanager
def _sides(request: Request) -> Generator[tuple[Side, Side]]:
    num_slots = min(request.num_slots, len(request.questions))
    reference = _reference(request, num_slots)
    try:
        candidate = _side(request, request.candidate, num_slots)
        try:
            yield reference, candidate
        finally:
            candidate.engine.close()
    finally:
        reference.engine.close()


def _reference(request: Request, num_slots: int) -> Side:
    bundle, against = request.bundle, request.against
    policy = bundle.manifest.halting_policy()
    if against is None:
        return golden_side(bundle.golden(), num_slots, policy)
    if isinstance(against, Path):
        engine, table = desktop.checkpoint_opener()(against, bundle.manifest, num_slots)
        return Side(name=f"PyTorch ({against.name})", engine=engine, puzzle_table=table, policy=policy)
    return _side(request, against, num_slots)


def _side(request: Request, choice: Choice, num_slots: int) -> Side:
    bundle = request.bundle
    engine = engine_for(
        bundle,
        engine=choice.engine,
        precision=choice.precision,
        num_slots=num_slots,
        num_threads=request.num_threads,
        want_logits=True,
    )
    policy = bundle.manifest.halting_policy(choice.precision)
    return Side(name=str(choice), engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)


def _bisected(request: Request, broken: list[Break], reference: Side) -> str:
    """What the two graphs say on ONNX Runtime's CPU kernels, where the first gate broke or in the first segment."""
    against = request.against
    if against is None:
        raise ValueError("golden traces know no nodes; for --bisect give --checkpoint, or --against another precision.")
    where = broken[0] if broken and broken[0].puzzle is not None else None
    asked = request.questions[where.puzzle if where and where.puzzle is not None else 0]
    segment = where.segment if where and where.segment else 1
    bisection = desktop.bisector()(
        reference=against if isinstance(against, Path) else _graph_of(request.bundle, against),
        candidate=_graph_of(request.bundle, request.candidate),
        tokens_T=asked.tokens_T,
        puzzle_vector_E=reference.puzzle_table[asked.puzzle_id],
        segment=segment,
    )
    return f"in segment {segment} of puzzle {asked.index} {bisection}"


def _graph_of(bundle: Bundle, choice: Choice) -> Path:
    return bundle.graph_path(choice.precision, device="cpu" if choice.engine == "cpu" else "any")
