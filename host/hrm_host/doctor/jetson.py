"""The board's part of hrm-doctor: JetPack, power mode, throttling; temperatures on any machine.

Trip points follow the kernel's document on thermal zones. Not run on a Jetson.
"""

import re
from collections.abc import Iterator, Mapping

from hrm_host.doctor import Finding, fail, ok, warn, warn_if
from hrm_host.machine import Host, Zone

RELEASE = re.compile(r"# R(?P<major>\d+) \(release\), REVISION: (?P<revision>[\d.]+)")
JETPACK_OF_MAJOR = {35: "5", 36: "6", 38: "7", 39: "7"}
OLDEST_RELEASE = (36, 4)  # JetPack 6.1, the first with TensorRT 10.3
OFFICIAL_BOARDS = ("Orin Nano", "Orin NX")
OFFICIAL_RELEASES = (36, 39)
HOT_C = 85.0  # limit of a zone that does not state its own
COOLING = (
    "clear the air path, run the fan (sudo nvpmodel -d cool on a Jetson), or lower the power mode"
)


def findings(machine: Host) -> Iterator[Finding]:
    if machine.jetson_release is not None:
        yield ok("board", machine.model or "an unnamed Jetson")
        yield release(machine.jetson_release, machine.model or "")
        yield power_mode(machine.recorded_power_mode(), machine.power_modes())
        yield from throttling(machine.throttle_events())
    yield from heat(machine)


def release(text: str, board: str) -> Finding:
    """JetPack, from the first line of /etc/nv_tegra_release: `# R36 (release), REVISION: 4.3`.

    The table of docs/jetson.md says what is supported.
    """
    found = RELEASE.match(text)
    if found is None:
        remedy = "flash JetPack 6.2 or newer with NVIDIA's SDK Manager"
        return warn("JetPack", f"unknown release {text[:60]!r}", remedy)
    major = int(found["major"])
    minor = int(found["revision"].split(".")[0])
    jetpack = JETPACK_OF_MAJOR.get(major, "unknown")
    is_official = any(name in board for name in OFFICIAL_BOARDS) and major in OFFICIAL_RELEASES
    support = "supported" if is_official else "should work"
    shown = f"{jetpack} (L4T {major}.{found['revision']}), {support}"
    if (major, minor) < OLDEST_RELEASE:
        shown = f"{jetpack} (L4T {major}.{found['revision']}), rejected"
        remedy = "flash JetPack 6.2 or newer: this release's TensorRT is older than 10.3"
        return fail("JetPack", shown, remedy)
    return ok("JetPack", shown)


def power_mode(name: str | None, names: Mapping[int, str]) -> Finding:
    """The current mode; `names` are all modes by number, and MAXN is the mode without limits."""
    if name is None:
        remedy = "run 'sudo nvpmodel -q' to see the mode, 'sudo nvpmodel -m ID' to choose one"
        return warn("power mode", "nvpmodel left no status", remedy)
    fastest = [number for number, one in names.items() if one.startswith("MAXN")]
    if name.startswith("MAXN") or not fastest:
        return ok("power mode", name)
    number = fastest[-1]
    remedy = f"sudo nvpmodel -m {number}, if supply and cooling allow it; engines are then rebuilt"
    return warn("power mode", f"{name}; {names[number]} is faster", remedy)


def throttling(events: Mapping[str, int]) -> Iterator[Finding]:
    """Over-current events since the board started."""
    if not events:
        return
    counts = [f"{name}: {count}" for name, count in events.items() if count]
    if counts:
        text = f"the board slowed down because of over-current ({', '.join(counts)})"
        remedy = "use the board's own power supply, or a lower power mode (sudo nvpmodel -m ID)"
        yield warn("throttling", text, remedy)
    else:
        yield ok("throttling", "no over-current event so far")


def heat(machine: Host) -> Iterator[Finding]:
    """The zone that is closest to its first throttling point."""
    limits = [(throttling_point_c(machine, zone), zone) for zone in machine.zones()]
    if not limits:
        return
    limit_c, zone = min(limits, key=lambda one: one[0] - one[1].celsius)
    text = f"{zone.name} {zone.celsius:.0f} °C, throttles from {limit_c:.0f} °C"
    is_hot = zone.celsius >= limit_c
    if is_hot:
        text += ": it is throttling now"
    yield warn_if(is_hot, "temperature", text, COOLING)


def throttling_point_c(machine: Host, zone: Zone) -> float:
    """The lowest trip point of type "passive", or HOT_C."""
    points_c: list[float] = []
    for kind in machine.paths(f"{zone.folder}/trip_point_*_type"):
        if machine.text(kind) != "passive":
            continue
        value = kind.with_name(kind.name.replace("_type", "_temp"))
        millidegrees = machine.number(value)
        if millidegrees is not None and millidegrees > 0:
            points_c.append(millidegrees / 1000)
    return min(points_c, default=HOT_C)
