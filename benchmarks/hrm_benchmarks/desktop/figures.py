"""Training speed as figures: medians over rounds, and ratios taken inside a round with their spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.desktop.contest import LOSS_TOLERANCE, Contestant
from hrm_benchmarks.report import environment
from hrm_benchmarks.turns import Turn, spread, spread_text, step_seconds

LEGEND = (
    "sample: one puzzle for one segment; ratio: samples/s beside the plain step of the same round, median and (in "
    "brackets) quartiles;\nequal work: the first losses, from equal weights, are the plain step's to "
    f"{LOSS_TOLERANCE:g}"
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One contestant over all rounds; `ratio_low` and `ratio_high` are quartiles."""

    name: str
    equal_work: bool
    samples_per_s: float
    step_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


def speeds(all_of: Sequence[Contestant], turns: Sequence[Sequence[Turn]], *, cpu_clock: bool) -> list[Speed]:
    """The first contestant is what the others are compared with."""
    seconds = step_seconds(turns, cpu_clock=cpu_clock)
    rates = np.array([one.samples_per_step for one in all_of]) / seconds
    ratios = rates / rates[:, :1]
    return [
        Speed(
            name=one.name,
            equal_work=one.equal_work,
            samples_per_s=float(np.median(rates[:, index])),
            step_ms=1e3 * float(np.median(seconds[:, index])),
            **dict(zip(("ratio", "ratio_low", "ratio_high"), spread(ratios[:, index]), strict=True)),
        )
        for index, one in enumerate(all_of)
    ]


def print_speeds(title: str, found: Sequence[Speed], console: Console) -> None:
    table = Table(title=title, caption=LEGEND, caption_justify="left", title_justify="left")
    table.add_column("trainer")
    for column in ("equal work", "samples/s", "ms a step", "ratio"):
        table.add_column(column, justify="right")
    for one in found:
        ratio = spread_text(one.ratio, one.ratio_low, one.ratio_high)
        equal = "yes" if one.equal_work else "no"
        table.add_row(one.name, equal, f"{one.samples_per_s:.1f}", f"{one.step_ms:.1f}", ratio)
    console.print(table)


def as_json(settings: Mapping[str, object], found: Sequence[Speed]) -> str:
    machine = {**environment(), "torch": torch.__version__}
    runs = [asdict(one) for one in found]
    return json.dumps({"environment": machine, "settings": settings, "runs": runs}, indent=2, default=str)
