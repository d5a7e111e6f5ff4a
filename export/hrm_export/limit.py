"""The time limit of an export: what is finished in time goes into the bundle."""

import time
from dataclasses import dataclass, field

from hrm_host.progress import Stages


class OutOfTimeError(ValueError):
    """The minutes of the export are over."""


@dataclass(eq=False, kw_only=True)
class LimitedStages(Stages):
    """Stages that are shown on `shown` until `minutes` after the start; then `show` raises."""

    shown: Stages
    minutes: float
    began_s: float = field(default_factory=time.monotonic)

    def show(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Show a stage; raise OutOfTimeError if the minutes are over before it is done."""
        self.shown.show(stage, done, total, note)
        is_done = total is not None and done >= total
        if not is_done and time.monotonic() >= self.end_of(1):
            self.shown.remove(stage)
            raise OutOfTimeError(f"the {self.minutes:g} minutes are over; allow more")

    def say(self, text: str) -> None:
        self.shown.say(text)

    def end_of(self, share: float) -> float:
        """The monotonic time at which this share of the minutes is over."""
        return self.began_s + share * 60 * self.minutes
