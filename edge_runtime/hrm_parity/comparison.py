"""One comparison from its engines to its verdict; read `compare_engines` first."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_host import progress
from hrm_host.machine import num_cores
from hrm_parity import BUILD_COMMAND
from hrm_parity.options import ParityOptions
from hrm_parity.report import (
    GATES,
    Break,
    Gates,
    Kind,
    ParityReport,
    breaks,
    not_judged,
    segment_rows,
    summary_rows,
    undecided,
)
from hrm_parity.walk import Side, golden_questions, golden_side, walk
from hrm_puzzles.data.sources import Questions, questions_from_data, questions_made

NUM_PUZZLES = 256
"""Default number of held-out puzzles: minutes on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The report and what broke in it."""

    report: ParityReport
    gates: Gates
    breaks: list[Break]

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
            "gates": self.gates.model_dump(exclude_none=True),
            **self.report.as_json(),
        }


def compare_engines(
    bundle: Bundle, options: ParityOptions, stages: progress.Stages | None = None
) -> Comparison:
    """Run the comparison and judge it.

    Without `data` and `puzzles`, the golden puzzles run as far as their traces; other puzzles run
    until both sides have halted. Without `against`, the reference is the golden
    traces for golden puzzles and cpu:fp32 for others. The reference of an unrolled graph is the
    loop over its step graph, and both halt by the learned rule, the only one that a graph knows.
    Raises ValueError if options contradict each other.
    """
    stages = stages or progress.Stages()
    choice, source = _choices(bundle, options)
    questions = questions_for(bundle, options, stages)
    gates = GATES[choice.precision][_kind_of(choice, source)]
    num_slots = min(options.slots, len(questions))
    candidate = _side(bundle, choice, num_slots, options.threads)
    with closing(candidate.engine):
        if candidate.shows_segments:
            reference = _side(bundle, source, num_slots, options.threads)
        else:
            reference = _loop_of(candidate, bundle, choice.precision, options.threads)
        with closing(reference.engine):
            report = walk(
                reference,
                candidate,
                questions,
                bundle.puzzle,
                num_segments=_num_segments(candidate, bundle, options),
                to_the_end=options.is_golden,
                progress=partial(stages.show, "puzzles"),
            )
    if not bundle.puzzle.proof_exists:
        report.proven = None
    return Comparison(report=report, gates=gates, breaks=breaks(report, gates))


def _kind_of(choice: Choice, source: Choice | None) -> Kind:
    if choice.engine == "unrolled":
        return "unrolled"
    return "golden" if source is None else "live"


def _num_segments(candidate: Side, bundle: Bundle, options: ParityOptions) -> int:
    if candidate.shows_segments and options.is_golden:
        return len(bundle.golden().answer_SBT)
    return candidate.policy.max_segments


def questions_for(bundle: Bundle, options: ParityOptions, stages: progress.Stages) -> Questions:
    if options.is_golden:
        return golden_questions(bundle.golden())
    count = options.puzzles or NUM_PUZZLES
    if options.data is None:
        return questions_made(
            bundle.puzzle,
            count,
            seed=options.seed,
            num_workers=num_cores(),
            progress=partial(stages.show, "making puzzles"),
        )
    questions = questions_from_data(options.data, bundle.puzzle, count, options.seed)
    questions.require_ids(bundle.manifest.num_puzzle_ids)
    return questions


def _choices(bundle: Bundle, options: ParityOptions) -> tuple[Choice, Choice | None]:
    """The candidate and its reference; None stands for the golden traces."""
    if options.engine.startswith("unrolled") and options.against is not None:
        raise ValueError(
            "an unrolled graph is compared with the loop over its own step graph: omit --against."
        )
    to_judge = partial(
        prepare,
        bundle,
        num_slots=options.slots,
        build_command=BUILD_COMMAND,
        to_judge=True,
    )
    candidate = to_judge(options.engine)
    source: Choice | None = None
    if options.against is not None or not options.is_golden:
        source = to_judge(options.against or "cpu:fp32")
    if source == candidate:
        raise ValueError(f"{candidate} would be compared with itself; give --against.")
    return candidate, source


def _side(bundle: Bundle, source: Choice | None, num_slots: int, num_threads: int | None) -> Side:
    policy = bundle.manifest.halting_policy()
    if source is None:
        return golden_side(bundle.golden(), num_slots, policy)
    if source.engine == "unrolled":
        return _unrolled_side(bundle, source.precision, num_slots, num_threads)
    name = str(source)
    engine = engine_for(
        bundle, engine=name, num_slots=num_slots, num_threads=num_threads, want_logits=True
    )
    policy = bundle.manifest.halting_policy(source.precision)
    return Side(name=name, engine=engine, puzzle_table=bundle.puzzle_table, policy=policy)


def _unrolled_side(bundle: Bundle, precision: str, num_slots: int, num_threads: int | None) -> Side:
    from hrm_edge_runtime.engines.unrolled import UnrolledEngine

    engine = UnrolledEngine(
        bundle, precision=precision, num_slots=num_slots, num_threads=num_threads
    )
    policy = bundle.manifest.halting_policy(precision)
    kind = "fixed" if policy.kind == "fixed" else "learned"
    return Side(
        name=f"unrolled:{precision}",
        engine=engine,
        puzzle_table=bundle.puzzle_table,
        policy=replace(policy, kind=kind, max_segments=engine.num_segments),
        shows_segments=False,
    )


def _loop_of(unrolled: Side, bundle: Bundle, precision: str, num_threads: int | None) -> Side:
    """The runtime's loop over the step graph that an unrolled graph repeats."""
    from hrm_edge_runtime.engines.onnx import OnnxEngine  # a Jetson has no ONNX Runtime

    num_slots = unrolled.engine.num_slots
    path = bundle.graph_path(precision)
    engine = OnnxEngine(path, num_slots=num_slots, num_threads=num_threads)
    return replace(unrolled, name=f"the loop over {path.name}", engine=engine)


def show(bundle: Bundle, comparison: Comparison) -> None:
    """Print the table of segments, the summary and the verdict."""
    console = Console()
    report = comparison.report
    title = f"{bundle.manifest.name}: {report.candidate} against {report.reference}"
    say = partial(console.print, highlight=False, soft_wrap=True)
    if report.columns:
        head, *rows = segment_rows(report)
        table = Table(
            *head, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        say(title)
    for name, text in summary_rows(report):
        say(f"{name:>14}  {text}")
    say(comparison.verdict)
    if comparison.breaks:
        say(f"first break: {comparison.breaks[0]}")
    if len(comparison.breaks) > 1:
        say(f"and {len(comparison.breaks) - 1} more")
