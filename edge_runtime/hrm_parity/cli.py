"""hrm-parity: compares an engine with a reference, puzzle by puzzle and segment by segment.

Read `compare_engines` first.
"""

import json
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import LEARNED
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_host import command, progress
from hrm_host.machine import num_cores
from hrm_host.reading import counted
from hrm_parity import BUILD_COMMAND
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

main = command.Command("hrm-parity")

NUM_PUZZLES = 256
"""Default number of held-out puzzles: minutes on a CPU."""
ROUNDED: dict[str, int | None] = {"rounded": None, "rounded16": 16}
"""Engines that round every operation, with the products that they add in float32 before rounding.

None adds all of a sum. Tensor cores may add 16.
"""


@dataclass(frozen=True, kw_only=True)
class ParityOptions:
    bundle: Annotated[
        str | None,
        typer.Argument(help="Bundle directory or shipped name. Default: sudoku."),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="Engine to check, ENGINE[:PRECISION]; also unrolled, rounded and rounded16."
        ),
    ] = "auto"
    against: Annotated[
        str | None,
        typer.Option(
            help="Reference engine. Default: golden traces, or cpu:fp32 with --data or --puzzles."
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data set whose test split to run. Default: golden or generated puzzles."
        ),
    ] = None
    puzzles: Annotated[int | None, typer.Option(min=1, help="Number of puzzles to run.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed for choosing or generating puzzles.")] = 1
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Puzzles per batch.")] = 16
    threads: command.Threads = None
    as_json: command.AsJson = False

    @property
    def is_golden(self) -> bool:
        return self.data is None and self.puzzles is None


class Comparison(NamedTuple):
    """The report and what broke in it."""

    report: ParityReport
    gates: Gates
    breaks: list[Break]

    @property
    def verdict(self) -> str:
        verdict = "broken" if self.breaks else "passed: every gate holds"
        unsure = " and ".join(undecided(self.report, self.gates))
        if unsure:
            count = counted(self.report.num_puzzles, "puzzle")
            verdict += f", but {count} cannot tell {unsure}; give more with --puzzles or --data"
        left_out = ", ".join(not_judged(self.report, self.gates))
        if left_out:
            verdict += f" (not judged, since an engine keeps its carry to itself: {left_out})"
        return verdict

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": not self.breaks,
            "undecided": undecided(self.report, self.gates),
            "not_judged": not_judged(self.report, self.gates),
            "breaks": [str(one) for one in self.breaks],
            "gates": self.gates.model_dump(),
            **self.report.as_json(),
        }


@main.command(
    groups={"Puzzles": "data puzzles seed", "Findings": "as_json"},
    epilog="Example: "
    "hrm-parity sudoku.bundle --engine cpu:int8 --against cpu:fp32 --data data/sudoku",
)
@command.taking(ParityOptions)
def parity(options: ParityOptions) -> None:
    """Compare two engines of a bundle segment by segment; exit with 1 if a limit is exceeded."""
    bundle = open_bundle(options.bundle)
    with progress.stages_on(Console(stderr=True)) as stages:
        found = compare_engines(bundle, options, stages)
    if options.as_json:
        print(json.dumps(found.as_json()))
    else:
        show(bundle, found)
    raise typer.Exit(1 if found.breaks else 0)


def compare_engines(
    bundle: Bundle, options: ParityOptions, stages: progress.Stages | None = None
) -> Comparison:
    """Run the comparison and judge it.

    Without `data` and `puzzles`, the golden puzzles run for the segments of their traces. Other
    puzzles run until both sides have halted. Without `against`, the reference is the golden traces
    for golden puzzles and cpu:fp32 for others. The reference of an unrolled graph is the
    loop over its step graph, and both halt by the learned rule, the only one that a graph knows.
    Raises ValueError if options contradict each other.
    """
    stages = stages or progress.Stages()
    choice, source = _choices(bundle, options)
    is_unrolled = choice.engine == "unrolled"
    questions = _questions_for(bundle, options, stages)
    num_slots = min(options.slots, len(questions))
    candidate = _side(bundle, choice, num_slots, options.threads)
    num_segments = candidate.policy.max_segments
    if options.is_golden and not is_unrolled:
        num_segments = len(bundle.golden().answer_SBT)
    with closing(candidate.engine):
        if is_unrolled:
            reference = _loop_of(candidate, bundle, choice.precision, options.threads)
        elif source is None:
            policy = bundle.manifest.halting_policy()
            reference = golden_side(bundle.golden(), num_slots, policy)
        else:
            reference = _side(bundle, source, num_slots, options.threads)
        with closing(reference.engine):
            report = walk(
                reference,
                candidate,
                questions,
                bundle.puzzle,
                num_segments=num_segments,
                to_the_end=options.is_golden and not is_unrolled,
                progress=partial(stages.show, "puzzles"),
            )
    kind: Kind = "live"
    if is_unrolled:
        kind = "unrolled"
    elif source is None:
        kind = "golden"
    gates = GATES[choice.precision][kind]
    return Comparison(report, gates, breaks(report, gates))


def _choices(bundle: Bundle, options: ParityOptions) -> tuple[Choice, Choice | None]:
    """The candidate and its reference; None means the golden traces."""
    if options.engine.startswith("unrolled") and options.against is not None:
        raise ValueError(
            "an unrolled graph is compared with the loop over its own step graph: omit --against."
        )
    candidate = _choice(bundle, options.engine, options.slots)
    source: Choice | None = None
    if options.against is not None or not options.is_golden:
        source = _choice(bundle, options.against or "cpu:fp32", options.slots)
    if source == candidate:
        raise ValueError(f"{candidate} would be compared with itself; give --against.")
    return candidate, source


def _choice(bundle: Bundle, name: str, num_slots: int) -> Choice:
    engine, _, precision = name.partition(":")
    if engine in ROUNDED:
        return Choice(engine=engine, precision=precision or "fp16")
    return prepare(bundle, name, num_slots=num_slots, build_command=BUILD_COMMAND, to_judge=True)


def _questions_for(bundle: Bundle, options: ParityOptions, stages: progress.Stages) -> Questions:
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


def _side(bundle: Bundle, source: Choice, num_slots: int, num_threads: int | None) -> Side:
    if source.engine in ROUNDED:
        from hrm_parity.rounded import rounded_engine  # a Jetson has no onnx

        graph_path = bundle.graph_path(source.precision)
        products = ROUNDED[source.engine]
        engine = rounded_engine(graph_path, bundle.manifest, num_slots=num_slots, products=products)
    else:
        engine = engine_for(
            bundle,
            engine=str(source),
            num_slots=num_slots,
            num_threads=num_threads,
            want_logits=source.engine != "unrolled",
        )
    side = Side(
        name=str(source),
        engine=engine,
        puzzle_table=bundle.puzzle_table,
        policy=bundle.manifest.halting_policy(source.precision),
    )
    if source.engine != "unrolled":
        return side
    from hrm_edge_runtime.engines.unrolled import UnrolledEngine  # a Jetson has no ONNX Runtime

    assert isinstance(engine, UnrolledEngine)
    kind = "fixed" if side.policy.kind == "fixed" else LEARNED
    policy = replace(side.policy, kind=kind, max_segments=engine.num_segments)
    return replace(side, policy=policy, shows_segments=False)


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
