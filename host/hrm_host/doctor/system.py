"""The machine around the card: PCIe power saving, disk, shared memory, swap, CPU."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path

from hrm_host.board import Host
from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, warn
from hrm_host.memory import GIB, MIB, read_memory

SELF_SCALING = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose 'powersave' governor still reaches full speed under load."""
CPU_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def findings(machine: Host, work: Path) -> Iterator[Finding]:
    """What applies to this machine; `work` is where runs and data are written."""
    space, shared = machine.space(work), machine.space("dev/shm")
    checks = (
        pcie_power_saving(machine),
        None if space is None else disk(space[1]),
        None if shared is None else shared_memory(shared[0]),
        swap(machine),
        governor(machine),
        cpu(machine) if platform.machine() in ("x86_64", "AMD64") else None,
    )
    yield from (finding for finding in checks if finding is not None)


def pcie_power_saving(machine: Host) -> Finding | None:
    """The chosen policy is in brackets: 'default performance [powersave] powersupersave'."""
    chosen = re.search(r"\[(\w+)\]", machine.text("sys/module/pcie_aspm/parameters/policy") or "")
    if chosen is None:
        return None
    if chosen[1] in ("powersave", "powersupersave"):
        remedy = "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy (or boot with pcie_aspm=off)"
        return warn("PCIe power saving", f"{chosen[1]}: links sleep, cards can drop out", remedy)
    return ok("PCIe power saving", chosen[1])


def disk(free: int) -> Finding:
    """Checkpoints of the published model take 0.4 GB each, the large ARC data set 6 GB."""
    text, remedy = f"{free / GIB:.1f} GiB free here", "delete old runs, or give --run and --data on another disk"
    if free < 20 * GIB:
        return (fail if free < 2 * GIB else warn)("disk", text, remedy)
    return ok("disk", text)


def shared_memory(total: int) -> Finding:
    text = f"{total / GIB:.2f} GiB in /dev/shm"
    if total < GIB:
        remedy = "sudo mount -o remount,size=8G /dev/shm, or start the container with --shm-size=8g"
        return warn("shared memory", f"{text}, too little for several GPUs to talk through", remedy)
    return ok("shared memory", text)


def swap(machine: Host) -> Finding | None:
    memory = read_memory(machine)
    if memory is None:
        return None
    total, available, of_swap = (mb * MIB / GIB for mb in (memory.total_mb, memory.available_mb, memory.swap_mb))
    text = f"{available:.1f} of {total:.1f} GiB free, swap {of_swap:.1f} GiB"
    if not memory.swap_mb and total < 32:
        return warn("memory", f"{text}: a peak of memory ends the run at once", ADD_SWAP)
    return ok("memory", text)


def governor(machine: Host) -> Finding | None:
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    name, driver = machine.text(f"{folder}/scaling_governor"), machine.text(f"{folder}/scaling_driver") or ""
    if name is None:
        return None
    text = f"{name} ({driver or 'unknown driver'})"
    if name == "powersave" and driver not in SELF_SCALING:
        return warn("CPU governor", text, "sudo cpupower frequency-set -g performance")
    return ok("CPU governor", text)


def cpu(machine: Host) -> Finding | None:
    """The vector extensions that training is fast with."""
    text = machine.text("proc/cpuinfo")
    if text is None:
        return None
    line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set[str]()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    found = [name for name in CPU_EXTENSIONS if name in flags]
    said = f"{model[1] if model else 'x86-64'}: {', '.join(found) or 'no AVX2'}"
    if "avx2" not in flags:
        return warn("CPU", said, "training on this CPU is very slow; use a GPU")
    return ok("CPU", said)
