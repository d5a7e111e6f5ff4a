"""What a calibration found, whole: enough to quantise again, to judge the result, and to draw it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from hrm_calibration.paired import Paired


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Solves(_Strict):
    """Shares of puzzles whose last answer equals the label, or carries a proof, and the mean of segments spent."""

    exact: float
    proven: float
    mean_segments: float


class SiteRange(_Strict):
    """A call site, the largest magnitude it was given, and the scale that each method chose."""

    name: str
    weight: str
    largest: float
    scales: dict[str, float]


class MethodScore(_Strict):
    """A method by what its graph solves of the choice puzzles; `drift` is the carry's after one segment."""

    method: str
    solves: Solves
    exact: Paired
    drift: float


class LayerDrift(_Strict):
    """A matrix and how far rounding what it alone reads moves the carry in one segment."""

    weight: str
    drift: float


class BudgetStep(_Strict):
    """What is lost of the choice puzzles with that many of the most sensitive matrices weight-only."""

    num_weight_only: int
    exact: Paired


class Judged(_Strict):
    """INT8 against float32 on puzzles that took part in no choice, under the same halting rule."""

    float32: Solves
    int8: Solves
    exact: Paired
    proven: Paired


class Int8Report(_Strict):
    """`reach[s]` counts the calibration puzzles that ran more than s segments; `key` says what all this belongs to.

    The methods were tried on `num_tried` of the `num_choice` puzzles on which the budget was kept.
    """

    key: str
    weight_bits: int
    num_calibration: int
    num_tried: int
    num_choice: int
    reach: list[int]
    sites: list[SiteRange]
    float32: Solves
    methods: list[MethodScore]
    chosen: str
    sensitivity: list[LayerDrift]
    budget: float
    budget_steps: list[BudgetStep]
    weight_only: list[str]
    judged: Judged
    size_bytes: dict[str, int]

    @property
    def scales(self) -> dict[str, float]:
        """The chosen scale of each call site."""
        return {site.name: site.scales[self.chosen] for site in self.sites}

    @property
    def size_ratio(self) -> float:
        """The INT8 file in units of the float32 file."""
        return self.size_bytes["int8"] / self.size_bytes["fp32"]

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def summary(self) -> str:
        """The outcome in one line."""
        exact, num_weight_only = self.judged.exact, len(self.weight_only)
        shares = (exact.ours, exact.reference, exact.loss, exact.low, exact.high)
        ours, reference, loss, low, high = (100 * share for share in shares)
        return (
            f"{self.chosen}, {num_weight_only} of {len(self.sensitivity)} matrices weight-only: exact solves "
            f"{ours:.1f} % against {reference:.1f} % in float32 on {exact.num_puzzles} other puzzles, a loss of "
            f"{loss:.2f} points ({low:.2f} to {high:.2f} at 95 %), file {self.size_ratio:.3f} of float32"
        )
