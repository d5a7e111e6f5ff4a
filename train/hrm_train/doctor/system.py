"""The machine around the card: PCIe power saving, disk, shared memory, swap, CPU."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from hrm_train.doctor.probe import GIB, Finding, Probe

SWAP_REMEDY = (
    "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"
)
SELF_SCALING = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose 'powersave' governor still reaches full speed under load."""


def findings(probe: Probe) -> Iterator[Finding]:
    for finding in (_aspm(probe), _disk(probe), _shared_memory(probe), _memory(probe), _governor(probe), _cpu(probe)):
        if finding is not None:
            yield finding


def _aspm(probe: Probe) -> Finding | None:
    text = probe.text("sys/module/pcie_aspm/parameters/policy")
    return None if text is None else aspm(text)


def aspm(text: str) -> Finding | None:
    """The chosen policy stands in brackets: 'default performance [powersave] powersupersave'."""
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        return None
    name = "PCIe power saving"
    if chosen[1].startswith("powersave") or chosen[1] == "powersupersave":
        remedy = "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy (or boot with pcie_aspm=off)"
        return Finding(name=name, level="warn", text=f"{chosen[1]}: links sleep, cards can drop out", remedy=remedy)
    return Finding(name=name, level="ok", text=chosen[1])


def _disk(probe: Probe) -> Finding | None:
    space = probe.space(probe.work)
    return None if space is None else disk(space[1])


def disk(free: int) -> Finding:
    """Checkpoints of the published model take 0.4 GB each, the large ARC data set 6 GB."""
    text, remedy = f"{free / GIB:.1f} GiB free here", "delete old runs, or give --run and --data on another disk"
    level = "fail" if free < 2 * GIB else "warn" if free < 20 * GIB else "ok"
    return Finding(name="disk", level=level, text=text, remedy="" if level == "ok" else remedy)


def _shared_memory(probe: Probe) -> Finding | None:
    space = probe.space("dev/shm")
    return None if space is None else shared_memory(space[0])


def shared_memory(total: int) -> Finding:
    text = f"{total / GIB:.2f} GiB in /dev/shm"
    if total < GIB:
        remedy = "sudo mount -o remount,size=8G /dev/shm, or start the container with --shm-size=8g"
        text += ", too little for several GPUs to talk through"
        return Finding(name="shared memory", level="warn", text=text, remedy=remedy)
    return Finding(name="shared memory", level="ok", text=text)


def _memory(probe: Probe) -> Finding | None:
    text = probe.text("proc/meminfo")
    return None if text is None else memory(text)


def memory(text: str) -> Finding:
    values = {key: int(kib) * 1024 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    total, available, swap = (values.get(key, 0) for key in ("MemTotal", "MemAvailable", "SwapTotal"))
    said = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free, swap {swap / GIB:.1f} GiB"
    if not swap and total < 32 * GIB:
        text = f"{said}: a peak of memory ends the run at once"
        return Finding(name="memory", level="warn", text=text, remedy=SWAP_REMEDY)
    return Finding(name="memory", level="ok", text=said)


def _governor(probe: Probe) -> Finding | None:
    directory = "sys/devices/system/cpu/cpu0/cpufreq"
    governor = probe.text(f"{directory}/scaling_governor")
    driver = probe.text(f"{directory}/scaling_driver") or ""
    return None if governor is None else judged_governor(governor.strip(), driver.strip())


def judged_governor(governor: str, driver: str) -> Finding:
    name, text = "CPU governor", f"{governor} ({driver or 'unknown driver'})"
    if governor == "powersave" and driver not in SELF_SCALING:
        return Finding(name=name, level="warn", text=text, remedy="sudo cpupower frequency-set -g performance")
    return Finding(name=name, level="ok", text=text)


def _cpu(probe: Probe) -> Finding | None:
    text = probe.text("proc/cpuinfo")
    return None if text is None or platform.machine() not in ("x86_64", "AMD64") else cpu(text)


def cpu(text: str) -> Finding:
    line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set[str]()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    found = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16") if name in flags]
    said = f"{model[1] if model else 'x86-64'}: {', '.join(found) or 'no AVX2'}"
    if "avx2" not in flags:
        return Finding(name="CPU", level="warn", text=said, remedy="training on this CPU is very slow; use a GPU")
    return Finding(name="CPU", level="ok", text=said)
