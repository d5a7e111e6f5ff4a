"""One comparison from its engines to its verdict, the reason for a break, and the verdicts a bundle keeps.

PyTorch runs only on a desktop, as the plug-in `checkpoint` of the entry-point group `hrm_edge.parity`.
Shapes: T tokens, V vocabulary, E puzzle-vector size, P puzzle-table rows.
"""

import json
import os
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.contract.arrays import Float32
from hrm_edge_runtime.contract.bundle import Bundle, Identifiers
from hrm_edge_runtime.contract.manifest import MANIFEST_NAME, BundleError, FileEntry, sha256_of
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.parity.measures import relative_error
from hrm_edge_runtime.parity.options import ParityOptions
from hrm_edge_runtime.parity.report import (
    Break,
    Gates,
    ParityReport,
    breaks,
    not_judged,
    read_gates,
    segment_rows,
    summary_rows,
)
from hrm_edge_runtime.parity.walk import Side, golden_questions, golden_side, walk
from hrm_host import atomic, progress
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Held-out puzzles where none are asked for: minutes on a CPU."""
PARITY_NAME = "parity.json"
MANY_TIMES = 4
"""Another row is named where it brings the candidate so many times nearer to the reference."""
SAME = 1e-5
"""One engine on the same puzzle and segment repeats itself to rounding."""
MOST_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The report, what broke in it, and the reasons found for the first break."""

    report: ParityReport
    gates: Gates
    breaks: list[Break]
    reasons: list[str]

    @property
    def verdict(self) -> str:
        left_out = not_judged(self.report, self.gates)
        more = (
            f" (not judged, since an engine keeps its carry to itself: {', '.join(left_out)})"
            if left_out
            else ""
        )
        return ("broken" if self.breaks else "passed: every gate holds") + more

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": not self.breaks,
            "not_judged": not_judged(self.report, self.gates),
            "breaks": [str(one) for one in self.breaks],
            "reasons": self.reasons,
            "gates": self.gates.model_dump(exclude_none=True),
            **self.report.as_json(),
        }


def compare_engines(
    bundle: Bundle, options: ParityOptions, stages: progress.Stages | None = None
) -> Comparison:
    """Run the comparison, judge it, and where it breaks look for the reason.

    Without `data` and `puzzles` the golden puzzles run as far as their traces, others run until both sides have halted.
    Without `against` and `checkpoint` the reference is the golden traces, or cpu:fp32 on other puzzles. Refuses options
    that contradict each other (ValueError).
    """
    stages = stages or progress.Stages()
    choice, source = _choices(bundle, options)
    questions = questions_for(bundle, options, stages)
    gates = read_gates(options.gates, choice.precision, "golden" if source is None else "live")
    num_slots = min(options.slots, len(questions))
    reference = _side(bundle, source, num_slots, options.threads)
    with closing(reference.engine):
        candidate = _side(bundle, choice, num_slots, options.threads)
        with closing(candidate.engine):
            report = walk(
                reference,
                candidate,
                questions,
                bundle.puzzle,
                num_segments=len(bundle.golden().answer_SBT)
                if options.is_golden
                else bundle.manifest.max_segments,
                to_the_end=options.is_golden,
                progress=partial(stages.show, "puzzles"),
            )
            report = report if bundle.puzzle.proof_exists else replace(report, proven=None)
            broken = breaks(report, gates)
            reasons = (
                reasons_of(broken[0], reference, candidate, questions, bundle) if broken else []
            )
    return Comparison(report=report, gates=gates, breaks=broken, reasons=reasons)


def questions_for(bundle: Bundle, options: ParityOptions, stages: progress.Stages) -> Questions:
    count, making = options.puzzles or NUM_PUZZLES, partial(stages.show, "making puzzles")
    if options.is_golden:
        return golden_questions(bundle.golden())
    if options.data is None:
        num_workers = os.cpu_count() or 1
        return questions_made(
            bundle.puzzle, count, seed=options.seed, num_workers=num_workers, progress=making
        )
    questions = questions_from_data(options.data, bundle.puzzle, count, options.seed)
    questions.require_ids(bundle.manifest.num_puzzle_ids)
    return questions


def _choices(bundle: Bundle, options: ParityOptions) -> tuple[Choice, Choice | Path | None]:
    """The candidate, and its reference where that is not the golden traces."""
    against, source = options.against, options.checkpoint
    if against is not None and source is not None:
        raise ValueError("a comparison has one reference; give either --against or --checkpoint.")
    candidate = prepare(bundle, options.engine, num_slots=options.slots, to_judge=True)
    if source is None and (against is not None or not options.is_golden):
        source = prepare(bundle, against or "cpu:fp32", num_slots=options.slots, to_judge=True)
    if source == candidate:
        raise ValueError(
            f"{candidate} would be compared with itself; give --against or --checkpoint."
        )
    return candidate, source


def _side(
    bundle: Bundle, source: Choice | Path | None, num_slots: int, num_threads: int | None
) -> Side:
    policy = bundle.manifest.halting_policy()
    if source is None:
        return golden_side(bundle.golden(), num_slots, policy)
    if isinstance(source, Path):
        engine, table = _open_checkpoint()(source, bundle.manifest, num_slots)
        return Side(
            name=f"PyTorch ({source.name})", engine=engine, puzzle_table=table, policy=policy
        )
    engine = engine_for(
        bundle, engine=str(source), num_slots=num_slots, num_threads=num_threads, want_logits=True
    )
    policy = bundle.manifest.halting_policy(source.precision)
    return Side(name=str(source), engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)


def _open_checkpoint() -> Any:
    """The plug-in that opens a checkpoint as an engine with its puzzle table [P, E]; ValueError if not installed."""
    remedy = "pip install 'hrm-edge[export]'"
    for entry in entry_points(group="hrm_edge.parity", name="checkpoint"):
        try:
            return entry.load()
        except ImportError as error:
            raise ValueError(
                f"--checkpoint needs {error.name}, which is not installed: {remedy}."
            ) from error
    raise ValueError(f"--checkpoint is not part of this installation: {remedy}.")


def reasons_of(
    first: Break, reference: Side, candidate: Side, questions: Questions, bundle: Bundle
) -> list[str]:
    """What explains the first break, in a sentence each; nothing where neither fault left its mark."""
    if first.segment is None or first.puzzle is None:
        return []
    asked = questions[first.puzzle]
    if first.segment > 1:
        return _lost_carry(_trace(candidate, asked, asked.puzzle_id, first.segment))
    return _other_row(reference, candidate, asked, bundle.identifiers)


def _lost_carry(traced: list[Float32]) -> list[str]:
    """A segment that says what segment 1 said, where the one before did not, was given no carry."""
    *before, last = (relative_error(logits_TV, traced[0]) <= SAME for logits_TV in traced[1:])
    if not last or (before and before[-1]):
        return []
    return [
        f"in segment {len(traced)} the candidate says again what it said in segment 1: its carry was begun anew"
    ]


def _other_row(
    reference: Side, candidate: Side, asked: HeldOutPuzzle, names: Identifiers
) -> list[str]:
    """The row of the puzzle table with which the candidate would agree, among the nearest ones."""
    own, start = asked.puzzle_id, max(0, asked.puzzle_id - MOST_ROWS // 2)
    (expected_TV,), (own_TV,) = (_trace(side, asked, own) for side in (reference, candidate))
    drift_of: dict[int, float] = {}
    for row in range(start, min(len(candidate.puzzle_table), start + MOST_ROWS)):
        if row != own:
            (found_TV,) = _trace(candidate, asked, row)
            drift_of[row] = relative_error(found_TV, expected_TV)
    best = min(drift_of, key=drift_of.__getitem__, default=None)
    if best is None or MANY_TIMES * drift_of[best] > relative_error(own_TV, expected_TV):
        return []
    rows = f"row {best} of the puzzle table ({names[best]}) instead of row {own} ({names[own]})"
    return [f"given {rows} the candidate agrees: the two sides do not read the same row"]


def _trace(side: Side, asked: HeldOutPuzzle, row: int, num_segments: int = 1) -> list[Float32]:
    """The logits of a puzzle with that row of the puzzle table, alone in the engine, after each segment."""
    side.engine.load(0, asked.tokens_T, side.puzzle_table[row])
    steps = (side.engine.step(1).logits_BTV for _ in range(num_segments))
    return [logits_BTV[0].copy() for logits_BTV in steps if logits_BTV is not None]


def show(bundle: Bundle, comparison: Comparison) -> None:
    console, report = Console(), comparison.report
    title = f"{bundle.manifest.name}: {report.candidate} against {report.reference}"
    head, *rows = segment_rows(report)
    table = Table(*head, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)
    say = partial(console.print, highlight=False, soft_wrap=True)
    for name, text in summary_rows(report):
        say(f"{name:>14}  {text}")
    say(comparison.verdict)
    if comparison.breaks:
        say(f"first break: {comparison.breaks[0]}")
    if len(comparison.breaks) > 1:
        say(f"and {len(comparison.breaks) - 1} more")
    for reason in comparison.reasons:
        say(reason)


def write_comparison(bundle: Bundle, comparison: Comparison) -> None:
    """Add the comparison to `parity.json`, over that of the same pair on the same puzzles.

    A kill at any moment leaves a bundle that opens: the manifest gives the file up before it changes and takes it back
    afterwards. No other file is hashed anew, so that a damaged one is not taken for sound.
    """
    report, file = comparison.report, bundle.path / PARITY_NAME
    try:
        known = (
            json.loads(file.read_text(encoding="utf-8"))
            if PARITY_NAME in bundle.manifest.files
            else {}
        )
    except ValueError as error:
        raise BundleError(f"{file} is no JSON ({error}): export the bundle again.") from error
    if not isinstance(known, dict):
        raise BundleError(f"{file} holds no JSON object: export the bundle again.")
    known[f"{report.candidate} against {report.reference} on {report.puzzles}"] = (
        comparison.as_json()
    )
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    others = {name: entry for name, entry in bundle.manifest.files.items() if name != PARITY_NAME}
    _write_manifest(bundle, others)
    atomic.write_text(file, text)
    entry = FileEntry(sha256=sha256_of(file), size_bytes=file.stat().st_size)
    _write_manifest(bundle, {**others, PARITY_NAME: entry})


def _write_manifest(bundle: Bundle, files: dict[str, FileEntry]) -> None:
    manifest = bundle.manifest.model_copy(update={"files": dict(sorted(files.items()))})
    atomic.write_text(bundle.path / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
