"""The board: its release, power mode, clocks, heat and throttling, from files that need no rights and no tool.

Formats after NVIDIA's developer guide for Jetson Linux 36 (nvpmodel, thermal zones, over-current events) and the
kernel's documents (devfreq, thermal). Written from these; not run on a Jetson.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hrm_edge_runtime.board.files import Files
from hrm_edge_runtime.board.sensors import Sensors
from hrm_edge_runtime.doctor.finding import Finding

RELEASE = re.compile(r"# R(?P<major>\d+) \(release\), REVISION: (?P<revision>[\d.]+)")
JETPACK_OF_MAJOR = {35: "5", 36: "6", 38: "7", 39: "7"}
OLDEST_RELEASE = (36, 4)  # JetPack 6.1: the first whose TensorRT is 10.3
MODE = re.compile(r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", re.MULTILINE)
HOT_C = 85.0  # where a zone tells no point of its own


def is_jetson(files: Files) -> bool:
    """Whether this machine runs Jetson Linux."""
    return files.text("etc/nv_tegra_release") is not None


def findings(files: Files) -> Iterator[Finding]:
    """Everything that only a Jetson has; heat is looked at everywhere."""
    if is_jetson(files):
        yield Finding(name="board", level="ok", text=files.text("proc/device-tree/model") or "an unnamed Jetson")
        yield release(files.text("etc/nv_tegra_release") or "")
        yield power_mode(files.text("var/lib/nvpmodel/status"), files.text("etc/nvpmodel.conf"))
        yield from gpu_clock(files)
        yield from throttling(Sensors(files=files).throttle_events())
    yield from heat(files)


def release(text: str) -> Finding:
    """The first line of /etc/nv_tegra_release: `# R36 (release), REVISION: 4.3, ...`."""
    found = RELEASE.match(text)
    if found is None:
        remedy = "flash JetPack 6.2 or newer with NVIDIA's SDK Manager"
        return Finding(name="JetPack", level="warn", text=f"unknown release {text[:60]!r}", remedy=remedy)
    major, minor = int(found["major"]), int(found["revision"].split(".")[0])
    said = f"{JETPACK_OF_MAJOR.get(major, 'unknown')} (L4T {major}.{found['revision']})"
    if (major, minor) < OLDEST_RELEASE:
        remedy = "flash JetPack 6.2 or newer: the TensorRT of this one is older than 10.3"
        return Finding(name="JetPack", level="fail", text=said, remedy=remedy)
    return Finding(name="JetPack", level="ok", text=said)


def power_mode(status: str | None, config: str | None) -> Finding:
    """`pmode:0002` of nvpmodel's status, named by its configuration; the mode without limits is called MAXN."""
    set_to = re.search(r"pmode:(\d+)", status or "")
    names = {int(number): name for number, name in MODE.findall(config or "")}
    if set_to is None:
        remedy = "look with 'sudo nvpmodel -q', choose with 'sudo nvpmodel -m ID'"
        return Finding(name="power mode", level="warn", text="nvpmodel has left no status", remedy=remedy)
    mode = int(set_to[1])
    name = names.get(mode, f"mode {mode}")
    fastest = [number for number, one in names.items() if one.startswith("MAXN")]
    if name.startswith("MAXN") or not fastest:
        return Finding(name="power mode", level="ok", text=name)
    text = f"{name}, where {names[fastest[-1]]} is faster"
    remedy = f"sudo nvpmodel -m {fastest[-1]}, where supply and cooling allow it; engines are then built anew"
    return Finding(name="power mode", level="warn", text=text, remedy=remedy)


def gpu_clock(files: Files) -> Iterator[Finding]:
    """Of the GPU's devfreq device; its highest frequency may be held below what it offers."""
    for path in files.paths("sys/class/devfreq/*gpu*/cur_freq"):
        now, low, high = (files.number(path.parent / f"{name}_freq") for name in ("cur", "min", "max"))
        offered = [int(word) for word in (files.text(path.parent / "available_frequencies") or "").split()]
        if now is None or low is None or high is None:
            continue
        said = f"{now / 1e6:.0f} MHz now, {low / 1e6:.0f} to {high / 1e6:.0f} allowed"
        if offered and high < max(offered):
            text = f"{said}, {max(offered) / 1e6:.0f} offered"
            remedy = "choose a power mode with a higher clock: sudo nvpmodel -m ID"
            yield Finding(name="GPU clock", level="warn", text=text, remedy=remedy)
        else:
            floats = "" if low == high else "; 'sudo jetson_clocks' pins it, which steadies timings"
            yield Finding(name="GPU clock", level="ok", text=f"{said}{floats}")


def throttling(events: dict[str, int]) -> Iterator[Finding]:
    """Over-current events since the start."""
    happened = {name: count for name, count in events.items() if count}
    if happened:
        said = ", ".join(f"{name}: {count}" for name, count in happened.items())
        text = f"the board slowed itself down for want of current ({said})"
        remedy = "use the power supply the board came with, or a lower power mode (sudo nvpmodel -m ID)"
        yield Finding(name="throttling", level="warn", text=text, remedy=remedy)
    elif events:
        yield Finding(name="throttling", level="ok", text="no over-current event since the start")


def heat(files: Files) -> Iterator[Finding]:
    """Of the zone that is nearest to its own first throttling point, trip points of the type "passive"."""
    margins = [(limit - now, now, limit, zone) for zone, now, limit in _zones(files)]
    if not margins:
        return
    margin, now, limit, zone = min(margins)
    said = f"{zone} {now:.0f} °C, slowed down from {limit:.0f} °C"
    if margin <= 0:
        remedy = "clear the air path, let the fan run (sudo nvpmodel -d cool on a Jetson), or lower the power mode"
        yield Finding(name="temperature", level="warn", text=f"{said}: it is throttling now", remedy=remedy)
    else:
        yield Finding(name="temperature", level="ok", text=said)


def _zones(files: Files) -> Iterator[tuple[str, float, float]]:
    for path in files.paths("sys/class/thermal/thermal_zone*/temp"):
        now = files.number(path)
        if now is None:
            continue
        limits = [
            files.number(kind.with_name(kind.name.replace("_type", "_temp")))
            for kind in files.paths(f"{path.parent}/trip_point_*_type")
            if files.text(kind) == "passive"
        ]
        known = [limit / 1000 for limit in limits if limit is not None and limit > 0]
        yield files.text(path.parent / "type") or path.parent.name, now / 1000, min(known, default=HOT_C)
