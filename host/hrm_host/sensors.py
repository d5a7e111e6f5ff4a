"""Power, energy, temperature and throttling as the kernel tells them.

Jetson boards measure their supply rails with INA3221 chips (kernel documentation, hwmon/ina3221: `in*_label`,
`in*_input` in mV, `curr*_input` in mA) and count over-current throttling in `oc*_event_cnt` (NVIDIA's developer guide,
"Over-Current Event Count"). PCs have thermal zones, and where it may be read an energy counter (powercap intel-rapl).
Written from these documents; not run on a Jetson.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hrm_host.machine_files import Files

CHANNELS = (1, 2, 3)
OVER_CURRENT = "sys/class/hwmon/hwmon*/oc*_event_cnt"
ZONES = "sys/class/thermal/thermal_zone*/temp"
NO_RAIL = ("NC", "")  # labels of channels that nothing is connected to


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A thermal zone now, and the folder that tells its limits."""

    name: str
    folder: Path
    celsius: float


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """Readings by name, as far as this machine has them."""

    files: Files = field(default_factory=Files)

    def power_w(self) -> dict[str, float]:
        """Of each supply rail now. On an Orin module VDD_IN feeds the others: do not add them up."""
        return dict(self._rails())

    def zones(self) -> Iterator[Zone]:
        """The thermal zones; one that is switched off does not read."""
        for path in self.files.paths(ZONES):
            if (millidegrees := self.files.number(path)) is not None:
                name = self.files.text(path.parent / "type") or path.parent.name
                yield Zone(name=name, folder=path.parent, celsius=millidegrees / 1000)

    def temperature_c(self) -> dict[str, float]:
        """Of each thermal zone by its name."""
        return {zone.name: zone.celsius for zone in self.zones()}

    def hottest_c(self) -> float | None:
        return max((zone.celsius for zone in self.zones()), default=None)

    def counted_energy_j(self) -> dict[str, float]:
        """What the machine's own counters say; they wrap around after hours."""
        found: dict[str, float] = {}
        for path in self.files.paths("sys/class/powercap/intel-rapl:[0-9]*/energy_uj"):
            if (microjoules := self.files.number(path)) is not None:
                found[self.files.text(path.parent / "name") or path.parent.name] = microjoules / 1e6
        return found

    def throttle_events(self) -> dict[str, int]:
        """How often the board slowed itself down for want of current, since it started."""
        counts = {path.name: self.files.number(path) for path in self.files.paths(OVER_CURRENT)}
        return {name.removesuffix("_event_cnt"): count for name, count in counts.items() if count is not None}

    def _rails(self) -> Iterator[tuple[str, float]]:
        for named in self.files.paths("sys/class/hwmon/hwmon*/name"):
            if self.files.text(named) != "ina3221":
                continue
            for channel in CHANNELS:
                label = self.files.text(named.parent / f"in{channel}_label") or ""
                millivolts = self.files.number(named.parent / f"in{channel}_input")
                milliamperes = self.files.number(named.parent / f"curr{channel}_input")
                if label not in NO_RAIL and millivolts is not None and milliamperes is not None:
                    yield label, millivolts * milliamperes / 1e6


@dataclass(kw_only=True)
class Energy:
    """Joules that only rise: a machine's own counters with their wraps taken out, or power summed over time.

    Power is taken as it stands at two readings, half and half, so a sum is as good as readings are frequent.
    """

    sensors: Sensors
    clock: Callable[[], float] = time.monotonic
    _joules: dict[str, float] = field(default_factory=dict[str, float])
    _counted: dict[str, float] = field(default_factory=dict[str, float])
    _watts: dict[str, float] = field(default_factory=dict[str, float])
    _read_s: float = 0.0

    def read_j(self) -> dict[str, float]:
        """Since the first reading, by rail or by counter."""
        now_s, watts, counted = self.clock(), self.sensors.power_w(), self.sensors.counted_energy_j()
        for name, value in watts.items():
            added = (value + self._watts[name]) / 2 * (now_s - self._read_s) if name in self._watts else 0.0
            self._joules[name] = self._joules.get(name, 0.0) + added
        for name, value in counted.items():
            self._joules[name] = self._joules.get(name, 0.0) + max(0.0, value - self._counted.get(name, value))
        self._read_s, self._watts, self._counted = now_s, watts, counted
        return dict(self._joules)
