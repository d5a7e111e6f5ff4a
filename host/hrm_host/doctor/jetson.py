"""The board: its release, power mode, clocks, heat and throttling, from files that need no rights and no tool.

`board` reads them. Trip points after the kernel's document on thermal zones; not run on a Jetson.
"""

import re
from collections.abc import Iterator, Mapping

from hrm_host.board import GpuClock, Host, Sensors, Zone
from hrm_host.doctor import Finding, fail, ok, warn

RELEASE = re.compile(r"# R(?P<major>\d+) \(release\), REVISION: (?P<revision>[\d.]+)")
JETPACK_OF_MAJOR = {35: "5", 36: "6", 38: "7", 39: "7"}
OLDEST_RELEASE = (36, 4)  # JetPack 6.1: the first whose TensorRT is 10.3
HOT_C = 85.0  # where a zone tells no point of its own


def is_jetson(machine: Host) -> bool:
    """Whether this machine runs Jetson Linux."""
    return machine.jetson_release is not None


def findings(machine: Host) -> Iterator[Finding]:
    """Everything that only a Jetson has; heat is looked at everywhere."""
    if machine.jetson_release is not None:
        yield ok("board", machine.model or "an unnamed Jetson")
        yield release(machine.jetson_release)
        yield power_mode(machine.set_power_mode(), machine.power_modes())
        yield from map(gpu_clock, machine.gpu_clocks())
        yield from throttling(Sensors(machine=machine).throttle_events())
    yield from heat(machine)


def release(text: str) -> Finding:
    """The first line of /etc/nv_tegra_release: `# R36 (release), REVISION: 4.3, ...`."""
    found = RELEASE.match(text)
    if found is None:
        remedy = "flash JetPack 6.2 or newer with NVIDIA's SDK Manager"
        return warn("JetPack", f"unknown release {text[:60]!r}", remedy)
    major, minor = int(found["major"]), int(found["revision"].split(".")[0])
    said = f"{JETPACK_OF_MAJOR.get(major, 'unknown')} (L4T {major}.{found['revision']})"
    if (major, minor) < OLDEST_RELEASE:
        remedy = "flash JetPack 6.2 or newer: the TensorRT of this one is older than 10.3"
        return fail("JetPack", said, remedy)
    return ok("JetPack", said)


def power_mode(name: str | None, names: Mapping[int, str]) -> Finding:
    """The mode in force and all that there are; the mode without limits is called MAXN."""
    if name is None:
        remedy = "look with 'sudo nvpmodel -q', choose with 'sudo nvpmodel -m ID'"
        return warn("power mode", "nvpmodel has left no status", remedy)
    fastest = [number for number, one in names.items() if one.startswith("MAXN")]
    if name.startswith("MAXN") or not fastest:
        return ok("power mode", name)
    text = f"{name}, where {names[fastest[-1]]} is faster"
    remedy = f"sudo nvpmodel -m {fastest[-1]}, where supply and cooling allow it; engines are then built anew"
    return warn("power mode", text, remedy)


def gpu_clock(clock: GpuClock) -> Finding:
    """Its highest frequency may be held below what it offers."""
    low, high, most = clock.min_hz, clock.max_hz, max(clock.offered_hz, default=0)
    said = f"{clock.now_hz / 1e6:.0f} MHz now, {low / 1e6:.0f} to {high / 1e6:.0f} allowed"
    if high < most:
        remedy = "choose a power mode with a higher clock: sudo nvpmodel -m ID"
        return warn("GPU clock", f"{said}, {most / 1e6:.0f} offered", remedy)
    floats = "" if low == high else "; 'sudo jetson_clocks' pins it, which steadies timings"
    return ok("GPU clock", f"{said}{floats}")


def throttling(events: dict[str, int]) -> Iterator[Finding]:
    """Over-current events since the start."""
    happened = {name: count for name, count in events.items() if count}
    if happened:
        said = ", ".join(f"{name}: {count}" for name, count in happened.items())
        text = f"the board slowed itself down for want of current ({said})"
        remedy = "use the power supply the board came with, or a lower power mode (sudo nvpmodel -m ID)"
        yield warn("throttling", text, remedy)
    elif events:
        yield ok("throttling", "no over-current event since the start")


def heat(machine: Host) -> Iterator[Finding]:
    """Of the zone that is nearest to its own first throttling point, trip points of the type "passive"."""
    limits = [(_limit_c(machine, zone), zone) for zone in Sensors(machine=machine).zones()]
    if not limits:
        return
    limit, zone = min(limits, key=lambda one: one[0] - one[1].celsius)
    said = f"{zone.name} {zone.celsius:.0f} °C, slowed down from {limit:.0f} °C"
    if zone.celsius >= limit:
        remedy = "clear the air path, let the fan run (sudo nvpmodel -d cool on a Jetson), or lower the power mode"
        yield warn("temperature", f"{said}: it is throttling now", remedy)
    else:
        yield ok("temperature", said)


def _limit_c(machine: Host, zone: Zone) -> float:
    limits = [
        machine.number(kind.with_name(kind.name.replace("_type", "_temp")))
        for kind in machine.paths(f"{zone.folder}/trip_point_*_type")
        if machine.text(kind) == "passive"
    ]
    return min((limit / 1000 for limit in limits if limit is not None and limit > 0), default=HOT_C)
