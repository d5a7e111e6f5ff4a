"""hrm-train --profile: a few real steps under torch.profiler, and where their time went.

The first steps are left out (compilation, caches); nothing that was learnt is kept.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile, schedule

from hrm_train.loop import Trainer
from hrm_train.meter import PHASE

SKIP, WARM, ACTIVE = 3, 2, 10
TOP = 15
TABLE, TRACE = "profile.txt", "trace.json.gz"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Milliseconds of one step that a phase or an operator takes on the device, and how often it is called in it."""

    name: str
    ms: float
    calls: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`operators` by their own time, without what they call; the longest first."""

    step_ms: float
    phases: tuple[Share, ...]
    operators: tuple[Share, ...]


def profile_steps(trainer: Trainer, run: Path) -> Profile:
    """Runs SKIP + WARM + ACTIVE steps; writes the table and the trace (for chrome://tracing or perfetto) into `run`."""
    on_cuda = trainer.device.type == "cuda"

    def now_s() -> float:
        if on_cuda:
            torch.cuda.synchronize(trainer.device)
        return time.perf_counter()

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    steps, step_ms = schedule(wait=SKIP, warmup=WARM, active=ACTIVE, repeat=1), 0.0
    with profile(activities=activities, schedule=steps, acc_events=True) as window:
        for _ in range(SKIP + WARM):
            trainer.step()
            window.step()
        begin_s = now_s()
        for number in range(ACTIVE):
            trainer.step()
            if number == ACTIVE - 1:
                step_ms = 1000 * (now_s() - begin_s) / ACTIVE  # before the profiler gathers what it has seen
            window.step()
    found = _by_time(window.key_averages(), step_ms, on_cuda=on_cuda)
    run.mkdir(parents=True, exist_ok=True)
    window.export_chrome_trace(str(run / TRACE))
    with (run / TABLE).open("w", encoding="utf-8") as file:
        Console(file=file, width=110).print(table(found))
    return found


def _by_time(events: Sequence[FunctionEventAvg], step_ms: float, *, on_cuda: bool) -> Profile:
    """Per step of the window; on CUDA device time counts, elsewhere the CPU's."""
    phases: list[Share] = []
    operators: list[Share] = []
    for event in events:
        name, calls = event.key or "", event.count / ACTIVE
        if name.startswith(PHASE):
            total_us = event.device_time_total if on_cuda else event.cpu_time_total
            phases.append(Share(name=name.removeprefix(PHASE), ms=total_us / 1000 / ACTIVE, calls=calls))
        elif not name.startswith("ProfilerStep"):
            own_us = event.self_device_time_total if on_cuda else event.self_cpu_time_total
            operators.append(Share(name=name, ms=own_us / 1000 / ACTIVE, calls=calls))
    longest = [tuple(sorted(shares, key=lambda share: -share.ms)) for shares in (phases, operators)]
    return Profile(step_ms=step_ms, phases=longest[0], operators=longest[1][:TOP])


def table(found: Profile) -> Table:
    """Phases above, operators below; shares of the step's wall time, in which operators of several threads overlap."""
    grid = Table(title=f"a step takes {found.step_ms:.1f} ms", show_edge=False)
    grid.add_column("phase or operator")
    for column in ("ms a step", "share", "calls a step"):
        grid.add_column(column, justify="right")
    for section in (found.phases, found.operators):
        for share in section:
            grid.add_row(share.name, f"{share.ms:.2f}", f"{share.ms / found.step_ms:.1%}", f"{share.calls:.0f}")
        grid.add_section()
    return grid
