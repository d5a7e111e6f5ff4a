"""`hrm-doctor`: what serving needs here (Python, an engine, memory, disk, board), and what other rooms add.

Trip points after the kernel's document on thermal zones; nothing of a board was run on a Jetson.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrm_host.board import GpuClock, Host, Zone, cuda_devices
from hrm_host.command import Command
from hrm_host.doctor import Finding, fail, fail_if, ok, python_finding, warn, warn_if
from hrm_host.memory import GIB, MIB, read_memory

GROUP = "hrm_edge.doctor"
DEVICE_CHECK = "hrm_edge_runtime.engines.trt.check"
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
OLDEST_TENSORRT = (10, 3)
DLA_COMPILER = "on a Jetson sudo apt-get install nvidia-l4t-dla-compiler; then sudo ldconfig"
FROM_JETPACK = "sudo apt-get install nvidia-jetpack python3-libnvinfer, then python3 -m venv --system-site-packages"
BUILDING_BYTES = 2 * GIB  # about what building an engine takes (calculated; engines/trt/build.py)
SERVING_BYTES = 256 * MIB  # both processes with the shipped Sudoku model
RELEASE = re.compile(r"# R(?P<major>\d+) \(release\), REVISION: (?P<revision>[\d.]+)")
JETPACK_OF_MAJOR = {35: "5", 36: "6", 38: "7", 39: "7"}
OLDEST_RELEASE = (36, 4)  # JetPack 6.1: the first whose TensorRT is 10.3
HOT_C = 85.0  # where a zone has no limit of its own
NO_DESKTOP = "leave the desktop (sudo systemctl set-default multi-user.target && sudo reboot) or close programs"


@dataclass(frozen=True, kw_only=True)
class ServingSoftware:
    """What loads here, by version; None where something is missing, a fault where it is there and does not work."""

    python: tuple[int, ...]
    onnxruntime: str | None
    providers: tuple[str, ...]
    tensorrt: str | None
    cuda_driver: str | None
    num_gpus: int = 0
    tensorrt_fault: str = ""
    gpu_fault: str = ""


def look() -> ServingSoftware:
    """This process's own software. TensorRT is imported and the driver started: metadata proves neither."""
    onnxruntime = tensorrt = None
    fault = ""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime
    if importlib.util.find_spec("tensorrt") is not None:
        try:
            tensorrt = str(importlib.import_module("tensorrt").__version__)
        except (ImportError, OSError) as error:
            fault = str(error)
    num_gpus, gpu_fault = cuda_devices()
    return ServingSoftware(
        python=tuple(sys.version_info[:3]),
        onnxruntime=str(onnxruntime.__version__) if onnxruntime else None,
        providers=tuple(onnxruntime.get_available_providers()) if onnxruntime else (),
        tensorrt=tensorrt,
        cuda_driver=_version("cuda-bindings") or _version("pycuda"),
        num_gpus=num_gpus,
        tensorrt_fault=fault,
        gpu_fault=gpu_fault,
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def findings(machine: Host, software: ServingSoftware) -> list[Finding]:
    on_jetson = machine.jetson_release is not None
    return [
        python_finding(software.python),
        *engines(software, on_jetson=on_jetson),
        *cuda(machine, on_jetson=on_jetson),
        *board(machine),
        *memory(machine, shared_with_gpu=on_jetson),
        engine_cache(),
    ]


def engines(software: ServingSoftware, *, on_jetson: bool) -> Iterator[Finding]:
    """ONNX Runtime or TensorRT; TensorRT needs a CUDA driver and its Python bindings as well."""
    if software.onnxruntime is not None:
        providers = ", ".join(provider.removesuffix("ExecutionProvider") for provider in software.providers)
        yield ok("ONNX Runtime", f"{software.onnxruntime} with {providers}")
    elif on_jetson:
        yield ok("ONNX Runtime", "missing; TensorRT does its work here")
    else:
        yield fail("ONNX Runtime", "missing", "pip install 'hrm-edge[serve]'")
    if software.tensorrt_fault:
        yield fail("TensorRT", f"does not load: {software.tensorrt_fault}", DLA_COMPILER)
        return
    if software.tensorrt is None:
        text = "missing" if on_jetson else "not installed; only --engine tensorrt needs it"
        yield fail_if(on_jetson, "TensorRT", text, FROM_JETPACK)
        return
    major, minor = (int(part) for part in software.tensorrt.split(".")[:2])
    remedy = "install TensorRT 10.3 or newer; on a Jetson flash JetPack 6.2"
    yield fail_if((major, minor) < OLDEST_TENSORRT, "TensorRT", software.tensorrt, remedy)
    if software.cuda_driver is not None:
        yield ok("CUDA bindings", software.cuda_driver)
    else:
        remedy = "pip install 'hrm-edge[jetson]'"
        yield (fail if on_jetson else warn)("CUDA bindings", "missing, and TensorRT engines need them", remedy)
    if software.num_gpus:
        yield ok("GPU", f"{software.num_gpus} CUDA device{'s' * (software.num_gpus > 1)}")
    else:
        remedy = "in a container use --runtime nvidia, and let the user into the groups video and render"
        yield (fail if on_jetson else warn)("GPU", f"CUDA does not start: {software.gpu_fault}", remedy)


def cuda(machine: Host, *, on_jetson: bool) -> Iterator[Finding]:
    """`version.json` of the toolkit names every component; older ones have version.txt."""
    old = re.search(r"CUDA Version ([\d.]+)", machine.text("usr/local/cuda/version.txt") or "")
    try:
        yield ok("CUDA", str(json.loads(machine.text("usr/local/cuda/version.json") or "")["cuda"]["version"]))
    except (ValueError, KeyError, TypeError):
        if old is not None:
            yield ok("CUDA", old[1])
        elif on_jetson:
            yield fail("CUDA", "no toolkit in /usr/local/cuda", FROM_JETPACK)


def memory(machine: Host, *, shared_with_gpu: bool) -> Iterator[Finding]:
    """The free memory, and the swap behind it; a GPU that shares this memory builds its engines in it."""
    if (account := read_memory(machine)) is None:
        return
    sizes = (account.total_mb, account.available_mb, account.swap_mb, account.zram_mb)
    total, available, swap, zram = (mb * MIB for mb in sizes)
    of_zram = f", {zram / GIB:.1f} of it zram" if zram else ""
    said = f"swap {swap / GIB:.1f} GiB{of_zram}" if swap else "no swap"
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free, {said}"
    if shared_with_gpu and SERVING_BYTES <= available < BUILDING_BYTES:
        building = f"building an engine takes about {BUILDING_BYTES / GIB:.0f} GiB (calculated)"
        yield warn("memory", f"{text}; {building}", NO_DESKTOP)
    else:
        yield fail_if(available < SERVING_BYTES, "memory", text, NO_DESKTOP)


def engine_cache(free: int | None = None) -> Finding:
    """Room for built engines; about 100 MB for each precision of a published model."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free if free is None else free
    text = f"{free / GIB:.1f} GiB free for engines in {cache}"
    if not os.access(folder, os.W_OK):
        return fail("engine cache", f"{cache} cannot be written", "set XDG_CACHE_HOME to a folder that can")
    return fail_if(free < GIB // 4, "engine cache", text, "free a gigabyte on that disk")


def board(machine: Host) -> Iterator[Finding]:
    """Everything that only a Jetson has, and the heat of any machine."""
    if machine.jetson_release is not None:
        yield ok("board", machine.model or "an unnamed Jetson")
        yield release(machine.jetson_release)
        yield power_mode(machine.recorded_power_mode(), machine.power_modes())
        yield from map(gpu_clock, machine.gpu_clocks())
        yield from throttling(machine.throttle_events())
    yield from heat(machine)


def release(text: str) -> Finding:
    """The first line of /etc/nv_tegra_release: `# R36 (release), REVISION: 4.3, ...`."""
    found = RELEASE.match(text)
    if found is None:
        remedy = "flash JetPack 6.2 or newer with NVIDIA's SDK Manager"
        return warn("JetPack", f"unknown release {text[:60]!r}", remedy)
    major, minor = int(found["major"]), int(found["revision"].split(".")[0])
    said = f"{JETPACK_OF_MAJOR.get(major, 'unknown')} (L4T {major}.{found['revision']})"
    remedy = "flash JetPack 6.2 or newer: the TensorRT of this one is older than 10.3"
    return fail_if((major, minor) < OLDEST_RELEASE, "JetPack", said, remedy)


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
    floats = "" if low == high else "; 'sudo jetson_clocks' pins it, which steadies timings"
    text = said + (f", {most / 1e6:.0f} offered" if high < most else floats)
    return warn_if(high < most, "GPU clock", text, "choose a power mode with a higher clock: sudo nvpmodel -m ID")


def throttling(events: dict[str, int]) -> Iterator[Finding]:
    said = ", ".join(f"{name}: {count}" for name, count in events.items() if count)
    if events:
        text = f"the board slowed itself down for want of current ({said})" if said else "no over-current event so far"
        remedy = "use the power supply the board came with, or a lower power mode (sudo nvpmodel -m ID)"
        yield warn_if(bool(said), "throttling", text, remedy)


def heat(machine: Host) -> Iterator[Finding]:
    """Of the zone that is nearest to its own first throttling point, trip points of the type "passive"."""
    limits: list[tuple[float, Zone]] = []
    for zone in machine.zones():
        kinds = [kind for kind in machine.paths(f"{zone.folder}/trip_point_*_type") if machine.text(kind) == "passive"]
        points = [machine.number(kind.with_name(kind.name.replace("_type", "_temp"))) for kind in kinds]
        limits.append((min((point / 1000 for point in points if point is not None and point > 0), default=HOT_C), zone))
    if not limits:
        return
    limit, zone = min(limits, key=lambda one: one[0] - one[1].celsius)
    is_hot = zone.celsius >= limit
    said = f"{zone.name} {zone.celsius:.0f} °C, slowed down from {limit:.0f} °C"
    remedy = "clear the air path, let the fan run (sudo nvpmodel -d cool on a Jetson), or lower the power mode"
    yield warn_if(is_hot, "temperature", said + ": it is throttling now" * is_hot, remedy)


main = Command("hrm-doctor")


@main.command(epilog="Example: hrm-doctor --json")
def doctor(
    device: Annotated[
        bool, typer.Option("--device", help="Try the GPU itself with TensorRT, step by step; JSON even where it fails.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Look for what stands in the way of serving and training on this machine; nothing is changed.

    Exits with 1 where something must be mended.
    """
    if device:
        steps = try_device()
        print(json.dumps(steps, indent=2))
        raise typer.Exit(any(step["level"] != "ok" for step in steps))
    rooms = {entry.name: entry.load()() for entry in metadata.entry_points(group=GROUP)}
    found: dict[str, list[Finding]] = {"serve": findings(Host(), look()), **rooms}
    if as_json:
        rows = [{"part": part, **asdict(finding)} for part, of_part in found.items() for finding in of_part]
        print(json.dumps(rows, indent=2))
    else:
        table = Table(show_edge=False)
        for column in ("for", "", "what", "found", "what mends it"):
            table.add_column(column, overflow="fold")
        for part, of_part in found.items():
            for finding in of_part:
                level = Text(finding.level, style=COLOURS[finding.level])
                table.add_row(part, level, *map(Text, (finding.name, finding.text, finding.remedy)))
            table.add_section()
        Console().print(table)
    raise typer.Exit(any(finding.level == "fail" for part in found.values() for finding in part))


def try_device() -> list[dict[str, Any]]:
    """What each step of the serving room's check found, in a process of its own: a driver may take it along."""
    done = subprocess.run([sys.executable, "-m", DEVICE_CHECK], stdout=subprocess.PIPE, text=True, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    steps: dict[str, dict[str, Any]] = {step["step"]: step for step in told}
    for step in steps.values():
        if step["level"] == "begun":
            step.update(level="fail", found=f"the process ended here with status {done.returncode}")
    return list(steps.values()) or [{"step": "start", "level": "fail", "found": f"status {done.returncode}"}]
