"""The serving part of hrm-doctor: Python, an engine, the board, memory and disk.

Not run on a Jetson.
"""

import importlib
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from hrm_host.doctor import Finding, fail, fail_if, ok, warn
from hrm_host.machine import Host, cache_folder, cuda_devices
from hrm_host.memory import GIB, MIB, building_mb, read_memory
from hrm_host.reading import counted

OLDEST_TENSORRT = (10, 3)
OLDEST_RELEASE = (36, 4)  # JetPack 6.1, the first with TensorRT 10.3
JETPACK_OF_MAJOR = {35: "5", 36: "6", 38: "7", 39: "7"}
JETPACK = {
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.5.0": "6.2.2",
    "36.5.2": "6.2.3",
    "38.2.0": "7.0",
    "38.4.0": "7.1",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
}
TENSORRT_OF_MAJOR = {36: ("10.3",), 38: ("10.13",), 39: ("10.16", "11.4")}
"""Releases of TensorRT with kernels for the board; 11.4 is a package of its own."""
PACKAGED = "/usr/lib/python3"  # where the package python3-libnvinfer puts its module
POLICY = "apt-cache policy python3-libnvinfer"
GPU_MHZ = {"Orin Nano": 1020, "Orin NX": 1173}
"""The highest GPU clock of a module in its Super configuration."""
CLOCK_SHARE = 0.95  # of the highest clock; a table of frequencies may round
NO_DESKTOP = (
    "stop the desktop (sudo systemctl set-default multi-user.target && sudo reboot) "
    "or close programs"
)
SERVING_BYTES = 256 * MIB  # memory of both processes with the shipped Sudoku model
MIN_CACHE_BYTES = GIB // 4  # an engine takes about 100 MB per precision of a published model


class ServingSoftware(NamedTuple):
    """Versions of the installed software; None for what is missing.

    A fault says why the software does not work.
    """

    onnxruntime: str | None
    providers: tuple[str, ...]
    tensorrt: str | None
    cuda_driver: str | None
    num_gpus: int = 0
    tensorrt_file: str = ""
    onnxruntime_fault: str = ""
    tensorrt_fault: str = ""
    gpu_fault: str = ""


def look() -> ServingSoftware:
    """Examine this process's software; import TensorRT and start the driver to prove that they
    work."""
    ort_version, onnxruntime_fault = _loaded("onnxruntime")
    providers: tuple[str, ...] = ()
    if ort_version is not None:
        import onnxruntime

        providers = tuple(onnxruntime.get_available_providers())
    tensorrt, tensorrt_fault = _loaded("tensorrt")
    spec = importlib.util.find_spec("tensorrt")
    num_gpus, gpu_fault = cuda_devices()
    return ServingSoftware(
        onnxruntime=ort_version,
        providers=providers,
        tensorrt=tensorrt,
        cuda_driver=_version("cuda-bindings") or _version("pycuda"),
        num_gpus=num_gpus,
        tensorrt_file=(spec.origin or "") if spec else "",
        onnxruntime_fault=onnxruntime_fault,
        tensorrt_fault=tensorrt_fault,
        gpu_fault=gpu_fault,
    )


def _loaded(package: str) -> tuple[str | None, str]:
    """Version of a package, and the error if it does not load; pip may leave an empty folder."""
    if importlib.util.find_spec(package) is None:
        return None, ""
    try:
        return str(importlib.import_module(package).__version__), ""
    except Exception as error:  # built for another NumPy it can raise any error
        return None, str(error)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def findings() -> list[Finding]:
    """The findings on this machine."""
    return findings_of(Host(), look())


def findings_of(machine: Host, software: ServingSoftware) -> list[Finding]:
    on_jetson = machine.jetson_release is not None
    return [
        ok("Python", platform.python_version()),
        *engines(software, machine.jetson_release),
        *board(machine),
        *memory(machine, shared_with_gpu=on_jetson),
        engine_cache(),
    ]


def engines(software: ServingSoftware, release: str | None) -> Iterator[Finding]:
    """Check the engines: a Jetson requires TensorRT, other machines require ONNX Runtime."""
    on_jetson = release is not None
    yield _onnxruntime_finding(software, on_jetson=on_jetson)
    if software.tensorrt_fault:
        remedy = "on a Jetson sudo apt-get install nvidia-l4t-dla-compiler; then sudo ldconfig"
        yield fail("TensorRT", f"does not load: {software.tensorrt_fault}", remedy)
    elif software.tensorrt is None:
        text = "missing" if on_jetson else "not installed; only --engine tensorrt needs it"
        install = "sudo apt-get install nvidia-jetpack python3-libnvinfer"
        remedy = f"{install}, then python3 -m venv --system-site-packages"
        yield fail_if(on_jetson, "TensorRT", text, remedy)
    else:
        yield _tensorrt_finding(software.tensorrt, software.tensorrt_file, release or "")
        yield from _gpu(software, on_jetson=on_jetson)


def _onnxruntime_finding(software: ServingSoftware, *, on_jetson: bool) -> Finding:
    name = "ONNX Runtime"
    if software.onnxruntime is not None:
        names = [one.removesuffix("ExecutionProvider") for one in software.providers]
        return ok(name, f"{software.onnxruntime} with {', '.join(names)}")
    install = "pip install 'hrm-edge[serve]'"
    if software.onnxruntime_fault:
        remedy = f"pip uninstall onnxruntime onnxruntime-gpu; {install}"
        return fail(name, f"does not load: {software.onnxruntime_fault}", remedy)
    if on_jetson:
        return ok(name, "missing; TensorRT replaces it here")
    return fail(name, "missing", install)


def _tensorrt_finding(version: str, file: str, release: str) -> Finding:
    """A Jetson needs the TensorRT of its JetPack: others lack the kernels of its GPU."""
    if release and not file.startswith(PACKAGED):
        text = f"{version} in {file} hides JetPack's and has no kernels for this GPU"
        packages = "tensorrt tensorrt-cu1{2,3}{,-bindings,-libs}"
        remedy = f"pip uninstall {packages}; {POLICY} shows JetPack's"
        return fail("TensorRT", text, remedy)
    major, minor = version.split(".")[:2]
    release_major, _ = release_number(release)
    expected = TENSORRT_OF_MAJOR.get(release_major)
    if expected and f"{major}.{minor}" not in expected:
        text = f"{version} is not JetPack's ({' or '.join(expected)}) and may not know this GPU"
        remedy = (
            f"{POLICY} shows JetPack's version and where the other comes from: remove that source "
            "or pin (Isaac ROS pins 10.13.3), then install JetPack's"
        )
        return fail("TensorRT", text, remedy)
    is_old = (int(major), int(minor)) < OLDEST_TENSORRT
    remedy = "install TensorRT 10.3 or newer; on a Jetson flash JetPack 6.2"
    return fail_if(is_old, "TensorRT", version, remedy)


def _gpu(software: ServingSoftware, *, on_jetson: bool) -> Iterator[Finding]:
    """Check what TensorRT needs: Python bindings of CUDA, and a device."""
    problem = fail if on_jetson else warn
    if software.cuda_driver is not None:
        yield ok("CUDA bindings", software.cuda_driver)
    else:
        text = "missing, and TensorRT engines need them"
        yield problem("CUDA bindings", text, "pip install 'hrm-edge[jetson]'")
    if software.num_gpus:
        yield ok("GPU", counted(software.num_gpus, "CUDA device"))
    else:
        remedy = "in a container use --runtime nvidia; add the user to the groups video and render"
        yield problem("GPU", f"CUDA does not start: {software.gpu_fault}", remedy)


def board(machine: Host) -> Iterator[Finding]:
    if machine.jetson_release is not None:
        yield ok("board", machine.model or "an unnamed Jetson")
        yield release(machine.jetson_release, machine.model or "")
        yield power_mode(machine)


def release(text: str, board: str) -> Finding:
    """JetPack, from the first line of /etc/nv_tegra_release: `# R36 (release), REVISION: 4.3`.

    The table of docs/jetson.md says what is supported.
    """
    major, revision = release_number(text)
    if not major:
        remedy = "flash JetPack 6.2 or newer with NVIDIA's SDK Manager"
        return warn("JetPack", f"unknown release {text[:60]!r}", remedy)
    minor = int(revision.split(".")[0])
    number = f"{major}.{revision}"
    jetpack = JETPACK.get(number) or JETPACK_OF_MAJOR.get(major, "unknown")
    is_official = major in (36, 39) and ("Orin Nano" in board or "Orin NX" in board)
    support = "supported" if is_official else "should work"
    shown = f"{jetpack} (L4T {number}), {support}"
    if (major, minor) < OLDEST_RELEASE:
        shown = f"{jetpack} (L4T {number}), rejected"
        remedy = "flash JetPack 6.2 or newer: this release's TensorRT is older than 10.3"
        return fail("JetPack", shown, remedy)
    return ok("JetPack", shown)


def release_number(text: str) -> tuple[int, str]:
    """Major number and revision of a release line; 0 if it has another form."""
    found = re.match(r"# R(?P<major>\d+) \(release\), REVISION: (?P<revision>[\d.]+)", text)
    if found is None:
        return 0, ""
    return int(found["major"]), found["revision"]


def power_mode(machine: Host) -> Finding:
    """The current mode; MAXN is the mode without limits."""
    name = machine.recorded_power_mode()
    names = machine.power_modes()
    if name is None:
        remedy = "run 'sudo nvpmodel -q' to see the mode, 'sudo nvpmodel -m ID' to choose one"
        return warn("power mode", "nvpmodel left no status", remedy)
    fastest = [number for number, one in names.items() if one.startswith("MAXN")]
    if name.startswith("MAXN") or not fastest:
        return gpu_clock(name, machine)
    number = fastest[-1]
    remedy = f"sudo nvpmodel -m {number}, if supply and cooling allow it; engines are then rebuilt"
    return warn("power mode", f"{name}; {names[number]} is faster", remedy)


def gpu_clock(mode: str, machine: Host) -> Finding:
    """The highest GPU clock that the fastest mode allows, beside the module's own."""
    for module, module_mhz in GPU_MHZ.items():
        for _, max_mhz in machine.gpu_mhz():
            if module in (machine.model or "") and max_mhz < CLOCK_SHARE * module_mhz:
                text = f"{mode} without Super clocks: the GPU gets {max_mhz} of {module_mhz} MHz"
                remedy = "flash JetPack 6.2 or 7.2.1 or newer with the board's Super configuration"
                return warn("power mode", text, remedy)
    return ok("power mode", mode)


def memory(machine: Host, *, shared_with_gpu: bool) -> Iterator[Finding]:
    """Free memory and swap; a GPU that shares this memory builds its engines in it."""
    account = read_memory(machine)
    if account is None:
        return
    available_bytes = account.available_mb * MIB
    text = f"{available_bytes / GIB:.1f} of {account.total_mb * MIB / GIB:.1f} GiB free"
    if account.swap_mb:
        text += f", swap {account.swap_mb * MIB / GIB:.1f} GiB"
    else:
        text += ", no swap"
    needs_mb = building_mb()
    if shared_with_gpu and available_bytes >= SERVING_BYTES and account.allocatable_mb < needs_mb:
        text += f"; building an engine takes about {needs_mb * MIB / GIB:.1f} GiB (calculated)"
        yield warn("memory", text, NO_DESKTOP)
    else:
        yield fail_if(available_bytes < SERVING_BYTES, "memory", text, NO_DESKTOP)


def engine_cache() -> Finding:
    """Disk space for built engines, in the first existing folder above the cache."""
    cache = cache_folder()
    folder = cache.absolute()
    while not folder.is_dir():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        remedy = "set XDG_CACHE_HOME to a writable folder"
        return fail("engine cache", f"{cache} is not writable", remedy)
    free_bytes = shutil.disk_usage(folder).free
    text = f"{free_bytes / GIB:.1f} GiB free for engines in {cache}"
    remedy = "free a gigabyte on that disk"
    return fail_if(free_bytes < MIN_CACHE_BYTES, "engine cache", text, remedy)
