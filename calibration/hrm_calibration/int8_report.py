"""What a calibration found: enough to quantise again, to judge the result, to keep it on disk and to draw it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hrm_calibration.halting_curve import Score
from hrm_edge_runtime.parity.measures import Z_95, loss_interval
from hrm_host import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW_HEIGHT = 9.0, 0.22


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two runs over the same puzzles: `loss` is the share that `ours` solves less than the reference.

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


def paired(reference_N: np.typing.NDArray[np.bool_], ours_N: np.typing.NDArray[np.bool_]) -> Paired:
    """Compare puzzle by puzzle; `loss_interval` says which interval this is."""
    num_puzzles = len(reference_N)
    num_lost, num_won = int((reference_N & ~ours_N).sum()), int((ours_N & ~reference_N).sum())
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
    """A method by what its graph solves of the choice puzzles; `drift` is the carry's after one segment."""

    method: str
    solves: Score
    exact: Paired
    drift: float


@dataclass(frozen=True, kw_only=True)
class Judged:
    """INT8 against float32 on puzzles that took part in no choice, under the same halting rule."""

    float32: Score
    int8: Score
    exact: Paired
    proven: Paired


@dataclass(frozen=True, kw_only=True)
class Int8Report:
    """`reach[s]` counts the calibration puzzles that ran more than s segments.

    Each comparison says on how many puzzles it was decided. By call site, `largest` is the largest magnitude seen and
    `scales_of` each method's choice. `sensitivity` says by matrix how far rounding what it alone reads moves the carry
    in one segment, the worst first; `budget_steps[n]` what is lost with the n worst weight-only.
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
        assert self.judged is not None, "whoever shows it asked for it"
        exact, size_ratio = self.judged.exact, self.size_bytes["int8"] / self.size_bytes["fp32"]
        return (
            f"{self.chosen}, {len(self.weight_only)} of {len(self.sensitivity)} matrices weight-only: exact solves "
            f"{100 * exact.ours:.1f} % against {100 * exact.reference:.1f} % in float32 on {exact.num_puzzles} other "
            f"puzzles, a loss of {100 * exact.loss:.2f} points ({100 * exact.low:.2f} to {100 * exact.high:.2f} at "
            f"95 %), file {size_ratio:.3f} of float32"
        )

    def save(self, directory: Path) -> None:
        """`calibration.json` and the pictures."""
        draw(self, directory)
        atomic.write_text(directory / "calibration.json", json.dumps(asdict(self), indent=1) + "\n")


def draw(report: Int8Report, directory: Path) -> None:
    """`layers.png` and `ranges.png`."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    for name, num_rows, fill in (
        ("layers", len(report.sensitivity), _draw_layers),
        ("ranges", len(report.largest), _draw_ranges),
    ):
        figure = Figure(figsize=(WIDTH, 1.5 + ROW_HEIGHT * num_rows), layout="constrained")
        fill(figure.subplots(), report)
        figure.savefig(directory / f"{name}.png", dpi=110)


def _draw_layers(axes: Axes, report: Int8Report) -> None:
    weights = list(report.sensitivity)[::-1]  # the worst on top
    colors = ["C1" if weight in report.weight_only else "C0" for weight in weights]
    axes.barh(weights, [report.sensitivity[weight] for weight in weights], color=colors)
    title = f"inputs of one matrix rounded at a time; {len(report.weight_only)} left weight-only"
    axes.set(xlabel="relative drift of the carry in one segment", title=title)


def _draw_ranges(axes: Axes, report: Int8Report) -> None:
    sites = list(report.largest)[::-1]
    axes.barh(sites, [report.largest[site] for site in sites], color="0.85", label="largest seen")
    for method, scales in report.scales_of.items():
        size = 30 if method == report.chosen else 10
        axes.scatter([127 * scales[site] for site in sites], range(len(sites)), s=size, label=method, zorder=2)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set(xlabel="magnitude", title="what each call site reads, and where it is clipped")
