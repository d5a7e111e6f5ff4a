"""One comparison from its options to its verdict, and the verdicts a bundle keeps in `parity.json`."""

import hashlib
import json
import os
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.manifest import MANIFEST_NAME, BundleError, FileEntry
from hrm_edge_runtime.parity import diagnosis
from hrm_edge_runtime.parity.gates import DEFAULT_FILE, Break, Gates, breaks, not_judged, read_gates
from hrm_edge_runtime.parity.report import ParityReport
from hrm_edge_runtime.parity.walk import Side, golden_questions, golden_side, walk
from hrm_host import atomic
from hrm_host.progress import Stages
from hrm_puzzles.data.held_out import Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Held-out puzzles where none are asked for: minutes on a CPU."""
PARITY_NAME = "parity.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
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


def compare_engines(
    bundle: Bundle,
    *,
    engine: str,
    against: str | None = None,
    checkpoint: Path | None = None,
    data: Path | None = None,
    puzzles: int | None = None,
    seed: int = 0,
    num_slots: int,
    num_threads: int | None = None,
    gates_file: Path = DEFAULT_FILE,
    bisect: bool = False,
    stages: Stages | None = None,
) -> Comparison:
    """Run the comparison, judge it, and where it breaks look for the reason.

    Without `data` and `puzzles` the golden puzzles run as far as their traces, others run until both sides have halted.
    Without `against` and `checkpoint` the reference is the golden traces, or cpu:fp32 on other puzzles. Refuses options
    that contradict each other (ValueError).
    """
    stages = stages or Stages()
    if against is not None and checkpoint is not None:
        raise ValueError("a comparison has one reference; give either --against or --checkpoint.")
    candidate_choice = prepare(bundle, engine, num_slots=num_slots)
    is_golden = data is None and puzzles is None
    if against is None and checkpoint is None and not is_golden:
        against = "cpu:fp32"
    source = checkpoint if against is None else prepare(bundle, against, num_slots=num_slots)
    if source == candidate_choice:
        raise ValueError(f"{candidate_choice} would be compared with itself; give --against or --checkpoint.")
    questions = _questions(bundle, data, puzzles, seed, stages)
    gates = read_gates(gates_file, candidate_choice.precision, "golden" if source is None else "live")
    num_slots = min(num_slots, len(questions))
    reference = _reference(bundle, source, num_slots, num_threads)
    with closing(reference.engine):
        candidate = _side(bundle, candidate_choice, num_slots, num_threads)
        with closing(candidate.engine):
            report = walk(
                reference,
                candidate,
                questions,
                bundle.puzzle,
                num_segments=len(bundle.golden().answer_SBT) if is_golden else bundle.manifest.max_segments,
                to_the_end=is_golden,
                progress=partial(stages.show, "puzzles"),
            )
            report = report if bundle.puzzle.proof_exists else replace(report, proven=None)
            broken = breaks(report, gates)
            reasons = diagnosis.reasons_of(broken[0], reference, candidate, questions, bundle) if broken else []
    bisection = _bisected(bundle, reference, source, candidate_choice, questions, broken) if bisect else None
    return Comparison(report=report, gates=gates, breaks=broken, reasons=reasons, bisection=bisection)


def write_comparison(bundle: Bundle, comparison: Comparison) -> None:
    """Add the comparison to `parity.json`, over that of the same pair on the same puzzles.

    A kill at any moment leaves a bundle that opens: the manifest gives the file up before it changes and takes it back
    afterwards. No other file is hashed anew, so that a damaged one is not taken for sound.
    """
    report, file = comparison.report, bundle.path / PARITY_NAME
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if PARITY_NAME in bundle.manifest.files else {}
    except ValueError as error:
        raise BundleError(f"{file} is no JSON ({error}): export the bundle again.") from error
    if not isinstance(known, dict):
        raise BundleError(f"{file} holds no JSON object: export the bundle again.")
    known[f"{report.candidate} against {report.reference} on {report.puzzles}"] = comparison.as_json()
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    others = {name: entry for name, entry in bundle.manifest.files.items() if name != PARITY_NAME}
    _write_manifest(bundle, others)
    atomic.write_text(file, text)
    content = text.encode()
    entry = FileEntry(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    _write_manifest(bundle, {**others, PARITY_NAME: entry})


def _questions(bundle: Bundle, data: Path | None, puzzles: int | None, seed: int, stages: Stages) -> Questions:
    if data is not None:
        questions = questions_from_data(data, bundle.puzzle, puzzles or NUM_PUZZLES, seed)
        questions.require_ids(bundle.manifest.num_puzzle_ids)
        return questions
    if puzzles is not None:
        num_workers, making = os.cpu_count() or 1, partial(stages.show, "making puzzles")
        return questions_made(bundle.puzzle, puzzles, seed=seed, num_workers=num_workers, progress=making)
    return golden_questions(bundle.golden())


def _reference(bundle: Bundle, source: Choice | Path | None, num_slots: int, num_threads: int | None) -> Side:
    policy = bundle.manifest.halting_policy()
    if source is None:
        return golden_side(bundle.golden(), num_slots, policy)
    if isinstance(source, Path):
        engine, table = diagnosis.plugin("checkpoint")(source, bundle.manifest, num_slots)
        return Side(name=f"PyTorch ({source.name})", engine=engine, puzzle_table=table, policy=policy)
    return _side(bundle, source, num_slots, num_threads)


def _side(bundle: Bundle, choice: Choice, num_slots: int, num_threads: int | None) -> Side:
    engine = engine_for(
        bundle,
        engine=choice.engine,
        precision=choice.precision,
        num_slots=num_slots,
        num_threads=num_threads,
        want_logits=True,
    )
    policy = bundle.manifest.halting_policy(choice.precision)
    return Side(name=str(choice), engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)


def _bisected(
    bundle: Bundle,
    reference: Side,
    source: Choice | Path | None,
    candidate: Choice,
    questions: Questions,
    broken: list[Break],
) -> str:
    """What the two graphs say on ONNX Runtime's CPU kernels, where the first gate broke or in the first segment."""
    if source is None:
        raise ValueError("golden traces know no nodes; for --bisect give --checkpoint, or --against another precision.")
    puzzle, segment = (broken[0].puzzle, broken[0].segment) if broken else (None, None)
    asked, segment = questions[puzzle or 0], segment or 1
    bisection = diagnosis.plugin("bisect")(
        reference=source if isinstance(source, Path) else _graph_of(bundle, source),
        candidate=_graph_of(bundle, candidate),
        tokens_T=asked.tokens_T,
        puzzle_vector_E=reference.puzzle_table[asked.puzzle_id],
        segment=segment,
    )
    return f"in segment {segment} of puzzle {asked.index} {bisection}"


def _graph_of(bundle: Bundle, choice: Choice) -> Path:
    return bundle.graph_path(choice.precision, device="cpu" if choice.engine == "cpu" else "any")


def _write_manifest(bundle: Bundle, files: dict[str, FileEntry]) -> None:
    manifest = bundle.manifest.model_copy(update={"files": dict(sorted(files.items()))})
    atomic.write_text(bundle.path / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
