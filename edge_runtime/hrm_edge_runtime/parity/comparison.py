"""One comparison from its engines to its verdict; read `compare_engines` first.

Also here: the likely reason for a break, and the verdicts that a bundle keeps.

PyTorch runs only on a desktop, as the plug-in `checkpoint` of the entry-point group
`hrm_edge.parity`.

Shapes: T tokens, V vocabulary, E puzzle-vector size, P puzzle-table rows.
"""

import json
import os
from contextlib import closing
from dataclasses import dataclass
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
    undecided,
)
from hrm_edge_runtime.parity.walk import Side, golden_questions, golden_side, walk
from hrm_host import atomic, progress
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Default number of held-out puzzles: minutes on a CPU."""
PARITY_NAME = "parity.json"
MANY_TIMES = 4
"""Name another row if it brings the candidate this many times nearer to the reference."""
SAME = 1e-5
"""Relative error below which logits are a repetition; an engine repeats itself up to rounding."""
MOST_ROWS = 1024
"""Rows of the puzzle table to try."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The report, what broke in it, and the reasons found for the first break."""

    report: ParityReport
    gates: Gates
    breaks: list[Break]
    reasons: list[str]

    @property
    def verdict(self) -> str:
        verdict = "broken" if self.breaks else "passed: every gate holds"
        unsure = " and ".join(self.undecided)
        if unsure:
            count = f"{self.report.num_puzzles} puzzles are too few"
            verdict += f", but {count} to tell {unsure}; give more with --puzzles or --data"
        left_out = ", ".join(not_judged(self.report, self.gates))
        if left_out:
            verdict += f" (not judged, since an engine keeps its carry to itself: {left_out})"
        return verdict

    @property
    def undecided(self) -> list[str]:
        return undecided(self.report, self.gates)

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": not self.breaks,
            "undecided": self.undecided,
            "not_judged": not_judged(self.report, self.gates),
            "breaks": [str(one) for one in self.breaks],
            "reasons": self.reasons,
            "gates": self.gates.model_dump(exclude_none=True),
            **self.report.as_json(),
        }


def compare_engines(
    bundle: Bundle, options: ParityOptions, stages: progress.Stages | None = None
) -> Comparison:
    """Run the comparison, judge it, and look for the reason of the first break.

    Without `data` and `puzzles`, the golden puzzles run as far as their traces; other puzzles run
    until both sides have halted. Without `against` and `checkpoint`, the reference is the golden
    traces for golden puzzles and cpu:fp32 for others. Raises ValueError if options contradict each
    other.
    """
    stages = stages or progress.Stages()
    choice, source = _choices(bundle, options)
    questions = questions_for(bundle, options, stages)
    kind = "golden" if source is None else "live"
    gates = read_gates(options.gates, choice.precision, kind)
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
                num_segments=_num_segments(bundle, options),
                to_the_end=options.is_golden,
                progress=partial(stages.show, "puzzles"),
            )
            if not bundle.puzzle.proof_exists:
                report.proven = None
            broken = breaks(report, gates)
            reasons: list[str] = []
            if broken:
                reasons = reasons_of(broken[0], reference, candidate, questions, bundle)
    return Comparison(report=report, gates=gates, breaks=broken, reasons=reasons)


def _num_segments(bundle: Bundle, options: ParityOptions) -> int:
    if options.is_golden:
        return len(bundle.golden().answer_SBT)
    return bundle.manifest.max_segments


def questions_for(bundle: Bundle, options: ParityOptions, stages: progress.Stages) -> Questions:
    if options.is_golden:
        return golden_questions(bundle.golden())
    count = options.puzzles or NUM_PUZZLES
    if options.data is None:
        return questions_made(
            bundle.puzzle,
            count,
            seed=options.seed,
            num_workers=os.cpu_count() or 1,
            progress=partial(stages.show, "making puzzles"),
        )
    questions = questions_from_data(options.data, bundle.puzzle, count, options.seed)
    questions.require_ids(bundle.manifest.num_puzzle_ids)
    return questions


def _choices(bundle: Bundle, options: ParityOptions) -> tuple[Choice, Choice | Path | None]:
    """The candidate and its reference; None stands for the golden traces."""
    against = options.against
    source: Choice | Path | None = options.checkpoint
    if against is not None and source is not None:
        raise ValueError("a comparison has one reference; give either --against or --checkpoint.")
    to_judge = partial(prepare, bundle, num_slots=options.slots, to_judge=True)
    candidate = to_judge(options.engine)
    if source is None and (against is not None or not options.is_golden):
        source = to_judge(against or "cpu:fp32")
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
        open_checkpoint = _open_checkpoint()
        engine, table_PE = open_checkpoint(source, bundle.manifest, num_slots)
        name = f"PyTorch ({source.name})"
        return Side(name=name, engine=engine, puzzle_table=table_PE, policy=policy)
    name = str(source)
    engine = engine_for(
        bundle, engine=name, num_slots=num_slots, num_threads=num_threads, want_logits=True
    )
    policy = bundle.manifest.halting_policy(source.precision)
    return Side(name=name, engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)


def _open_checkpoint() -> Any:
    """The plug-in that opens a checkpoint as an engine with its puzzle table [P, E].

    Raises ValueError if it is not installed.
    """
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
    """Explanations of the first break, one sentence each; empty if neither known fault fits."""
    if first.segment is None or first.puzzle is None:
        return []
    asked = questions[first.puzzle]
    if first.segment > 1:
        traced = _trace(candidate, asked, asked.puzzle_id, first.segment)
        return _lost_carry(traced)
    return _other_row(reference, candidate, asked, bundle.identifiers)


def _lost_carry(traced: list[Float32]) -> list[str]:
    """Report a lost carry: the last segment repeats the first, the segment before it does not."""
    first_TV, *later = traced
    is_repeated = [relative_error(logits_TV, first_TV) <= SAME for logits_TV in later]
    *before, last = is_repeated
    if not last or (before and before[-1]):
        return []
    return [
        f"in segment {len(traced)} the candidate says again what it said in segment 1: "
        "its carry was begun anew"
    ]


def _other_row(
    reference: Side, candidate: Side, asked: HeldOutPuzzle, names: Identifiers
) -> list[str]:
    """Name the row of the puzzle table with which the candidate agrees, if a nearby row does."""
    own = asked.puzzle_id
    expected_TV = _first_logits(reference, asked, own)
    error = relative_error(_first_logits(candidate, asked, own), expected_TV)
    start = max(0, own - MOST_ROWS // 2)
    stop = min(len(candidate.puzzle_table), start + MOST_ROWS)
    error_of: dict[int, float] = {}
    for row in range(start, stop):
        if row != own:
            found_TV = _first_logits(candidate, asked, row)
            error_of[row] = relative_error(found_TV, expected_TV)
    best = min(error_of, key=error_of.__getitem__, default=None)
    if best is None or MANY_TIMES * error_of[best] > error:
        return []
    rows = f"row {best} of the puzzle table ({names[best]}) instead of row {own} ({names[own]})"
    return [f"given {rows} the candidate agrees: the two sides do not read the same row"]


def _first_logits(side: Side, asked: HeldOutPuzzle, row: int) -> Float32:
    (logits_TV,) = _trace(side, asked, row, num_segments=1)
    return logits_TV


def _trace(side: Side, asked: HeldOutPuzzle, row: int, num_segments: int) -> list[Float32]:
    """Logits after each segment, for a puzzle with that row of the table, alone in the engine."""
    side.engine.load(0, asked.tokens_T, side.puzzle_table[row])
    traced: list[Float32] = []
    for _ in range(num_segments):
        logits_BTV = side.engine.step(1).logits_BTV
        if logits_BTV is not None:
            traced.append(logits_BTV[0].copy())
    return traced


def show(bundle: Bundle, comparison: Comparison) -> None:
    """Print the table of segments, the summary, the verdict and its reasons."""
    console = Console()
    report = comparison.report
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
    """Add the comparison to `parity.json`; it replaces an earlier one of the same pair and puzzles.

    A kill at any moment leaves a bundle that opens: the manifest drops the file before the file
    changes and lists it again afterwards. No other file is hashed again, so a damaged one still
    shows.
    """
    report = comparison.report
    file = bundle.path / PARITY_NAME
    known = _known_comparisons(bundle)
    title = f"{report.candidate} against {report.reference} on {report.puzzles}"
    known[title] = comparison.as_json()
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    files = dict(bundle.manifest.files)
    files.pop(PARITY_NAME, None)
    _write_manifest(bundle, files)
    atomic.write_text(file, text)
    files[PARITY_NAME] = FileEntry(sha256=sha256_of(file), size_bytes=file.stat().st_size)
    _write_manifest(bundle, files)


def _known_comparisons(bundle: Bundle) -> dict[str, Any]:
    """What `parity.json` holds; BundleError if it is not a JSON object."""
    if PARITY_NAME not in bundle.manifest.files:
        return {}
    file = bundle.path / PARITY_NAME
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{file} is not JSON ({error}): export the bundle again.") from error
    if not isinstance(known, dict):
        raise BundleError(f"{file} does not hold a JSON object: export the bundle again.")
    return known


def _write_manifest(bundle: Bundle, files: dict[str, FileEntry]) -> None:
    by_name = dict(sorted(files.items()))
    manifest = bundle.manifest.model_copy(update={"files": by_name})
    text = manifest.model_dump_json(indent=2) + "\n"
    atomic.write_text(bundle.path / MANIFEST_NAME, text)
