"""What `hrm-data` says: progress on a terminal or in a pipe, what was built, what was found."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hrm_host.progress import OnProgress
from hrm_puzzles.arc.build import ArcBuilt
from hrm_puzzles.data.build import Built
from hrm_puzzles.data.inspection import Quantiles, Report, SplitReport

MOST_GIVENS = 40  # numbers of givens that are listed one by one


def built_text(built: Built | ArcBuilt) -> str:
    counts = f"{built.num_train} training and {built.num_test} test examples"
    lines = [f"{counts}, sha256 {built.fingerprint}"]
    if isinstance(built, ArcBuilt):
        lines.append(f"{built.num_tasks} tasks in {built.num_puzzles} variants, {built.num_left_out} tasks too large.")
    elif built.num_left_out:
        lines.append(f"{built.num_left_out} training questions left out: symmetric copies of test questions.")
    return "\n".join(lines)


def cost_of(num_examples: int, seconds: float) -> dict[str, float]:
    """What a build took: time, and where the system tells it the CPU time of this process and its workers.

    `peak_rss_bytes` is the greatest resident size that any one of them had.
    """
    cost = {"seconds": round(seconds, 2), "examples_per_second": round(num_examples / seconds, 1)}
    try:
        import resource
    except ImportError:  # Windows
        return cost
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 1 if sys.platform == "darwin" else 1024
    cpu_seconds = round(sum(usage.ru_utime + usage.ru_stime for usage in used), 2)
    return {**cost, "cpu_seconds": cpu_seconds, "peak_rss_bytes": unit * max(usage.ru_maxrss for usage in used)}


@contextmanager
def progress_shown(noun: str) -> Generator[OnProgress]:
    """A bar on a terminal; elsewhere a line for every tenth of the work."""
    if not sys.stderr.isatty():
        yield _lines(noun)
        return
    columns = (TextColumn(noun), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(noun)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move


def _lines(noun: str) -> OnProgress:
    said = -1

    def say(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // total if total else 10
        if tenth > said:
            said = tenth
            print(f"{done} of {total} {noun}", file=sys.stderr, flush=True)

    return say


def report_text(report: Report) -> str:
    parts = [f"puzzle {report.puzzle}", *(_split_text(part) for part in report.splits)]
    parts.append(f"test examples also in train: {report.num_shared}, in any symmetric copy: {report.num_equivalent}")
    parts += [f"FAULT: {fault}" for fault in report.faults] or ["no faults"]
    return "\n".join(parts)


def _split_text(part: SplitReport) -> str:
    counts = f"{part.num_examples} examples of {part.num_puzzles} puzzles in {part.num_groups} groups"
    lines = [
        f"{part.split}: {counts}, {part.num_identifiers} puzzle ids",
        f"  tokens {_range(part.token_range)}, labels {_range(part.label_range)}, wrong labels {part.num_wrong}",
        f"  questions that stand there before: {part.num_repeats}",
        f"  examples of a group: {_quantiles(part.examples_per_group)}",
        f"  filled positions of a label: {_quantiles(part.lengths)}",
    ]
    if len(part.givens) <= MOST_GIVENS:
        lines.append("  givens " + ", ".join(f"{count}: {number}" for count, number in part.givens.items()))
    if part.rating_quantiles:
        lines.append(f"  rating: {_quantiles(part.rating_quantiles)}")
    return "\n".join(lines)


def _quantiles(values: Quantiles) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _range(values: tuple[int, int]) -> str:
    return f"{values[0]} to {values[1]}"
