"""The findings of a calibration: enough to quantize again, to judge, to store and to draw."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_calibration.halting_curve import Score
from hrm_calibration.ranges import STEPS
from hrm_edge_runtime.parity.measures import Z_95, loss_interval
from hrm_host import atomic

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

WIDTH_INCHES = 9.0
ROW_INCHES = 0.22
FRAME_INCHES = 1.5
"""Height of a picture's title and axis."""
DOTS_PER_INCH = 110
WEIGHT_ONLY_COLOR = "C1"
ROUNDED_COLOR = "C0"


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two runs over the same puzzles: `loss` is the share that `ours` solves less than `reference`.

    `low` and `high` bound the loss at 95 %.
    """

    num_puzzles: int
    reference: float
    ours: float
    num_lost: int
    num_won: int
    loss: float
    low: float
    high: float

    @property
    def standard_error(self) -> float:
        return (self.high - self.low) / (2 * Z_95)


def paired(reference_N: NDArray[np.bool_], ours_N: NDArray[np.bool_]) -> Paired:
    """Compare puzzle by puzzle, with the interval of `loss_interval`."""
    num_puzzles = len(reference_N)
    num_lost = int((reference_N & ~ours_N).sum())
    num_won = int((ours_N & ~reference_N).sum())
    low, high = loss_interval(num_lost, num_won, num_puzzles)
    return Paired(
        num_puzzles=num_puzzles,
        reference=float(reference_N.mean()),
        ours=float(ours_N.mean()),
        num_lost=num_lost,
        num_won=num_won,
        loss=(num_lost - num_won) / num_puzzles,
        low=low,
        high=high,
    )


@dataclass(frozen=True, kw_only=True)
class MethodScore:
    """How a method's graph solves the choice puzzles; `drift` is the carry's after one segment."""

    method: str
    solves: Score
    exact: Paired
    drift: float


@dataclass(frozen=True, kw_only=True)
class Judged:
    """INT8 against float32 on puzzles that took part in no choice."""

    float32: Score
    int8: Score
    exact: Paired
    proven: Paired


@dataclass(frozen=True, kw_only=True)
class Int8Report:
    """Every comparison states on how many puzzles it was decided.

    reach: calibration puzzles that ran more than s segments, by s
    largest: largest magnitude seen, by call site
    scales_of: the scales that each method chose, by call site
    sensitivity: drift of the carry in one segment if the inputs of this matrix alone are rounded,
      the worst matrix first
    budget_steps: what is lost with the n worst matrices weight-only, by n
    """

    num_calibration: int
    num_tried: int
    num_choice: int
    reach: list[int]
    largest: dict[str, float]
    scales_of: dict[str, dict[str, float]]
    float32: Score
    methods: list[MethodScore]
    chosen: str
    sensitivity: dict[str, float]
    budget: float
    budget_steps: list[Paired]
    weight_only: list[str]
    judged: Judged | None
    size_bytes: dict[str, int]

    @property
    def scales(self) -> dict[str, float]:
        return self.scales_of[self.chosen]

    def summary(self) -> str:
        assert self.judged is not None, "only a judged calibration has a summary"
        exact = self.judged.exact
        size_ratio = self.size_bytes["int8"] / self.size_bytes["fp32"]
        num_weight_only = len(self.weight_only)
        low = 100 * exact.low
        high = 100 * exact.high
        return (
            f"{self.chosen}, {num_weight_only} of {len(self.sensitivity)} matrices weight-only: "
            f"exact solves {100 * exact.ours:.1f} % against {100 * exact.reference:.1f} % in "
            f"float32 on {exact.num_puzzles} other puzzles, a loss of {100 * exact.loss:.2f} "
            f"points ({low:.2f} to {high:.2f} at 95 %), file {size_ratio:.3f} of float32"
        )

    def save(self, directory: Path) -> None:
        """Write `calibration.json` and the pictures."""
        draw(self, directory)
        text = json.dumps(asdict(self), indent=1)
        atomic.write_text(directory / "calibration.json", text + "\n")


def draw(report: Int8Report, directory: Path) -> None:
    """Write `layers.png` and `ranges.png`."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    height = FRAME_INCHES + ROW_INCHES * len(report.sensitivity)
    layers = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    _draw_layers(layers.subplots(), report)
    layers.savefig(directory / "layers.png", dpi=DOTS_PER_INCH)

    height = FRAME_INCHES + ROW_INCHES * len(report.largest)
    ranges = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    _draw_ranges(ranges.subplots(), report)
    ranges.savefig(directory / "ranges.png", dpi=DOTS_PER_INCH)


def _draw_layers(axes: Axes, report: Int8Report) -> None:
    """Drift by matrix, the worst one on top."""
    weights: list[str] = []
    drifts: list[float] = []
    colors: list[str] = []
    for weight, drift in reversed(report.sensitivity.items()):
        is_weight_only = weight in report.weight_only
        weights.append(weight)
        drifts.append(drift)
        colors.append(WEIGHT_ONLY_COLOR if is_weight_only else ROUNDED_COLOR)
    axes.barh(weights, drifts, color=colors)
    num_weight_only = len(report.weight_only)
    title = f"inputs of one matrix rounded at a time; {num_weight_only} stay weight-only"
    axes.set(xlabel="relative drift of the carry in one segment", title=title)


def _draw_ranges(axes: Axes, report: Int8Report) -> None:
    """The largest magnitude of every call site, and where each method clips it."""
    sites = list(report.largest)
    sites.reverse()
    places = range(len(sites))
    largest = list(reversed(report.largest.values()))
    axes.barh(sites, largest, color="0.85", label="largest seen")
    for method, scales in report.scales_of.items():
        size = 30 if method == report.chosen else 10
        clips = [STEPS * scales[site] for site in sites]
        axes.scatter(clips, places, s=size, label=method, zorder=2)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set(xlabel="magnitude", title="what each call site reads, and where it is clipped")
