"""The machine that trains: graphics cards (nvidia-smi), the kernel's log, PCIe power saving, disk, memory, CPU."""

import csv
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hrm_host.board import Host
from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, warn, warn_if
from hrm_host.memory import GIB, MIB, read_memory

QUERY = (
    "index,name,driver_version,persistence_mode,clocks.applications.graphics,clocks.max.graphics,"
    "power.limit,power.default_limit,power.max_limit,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "temperature.gpu,ecc.errors.uncorrected.volatile.total"
)
FIELDS = QUERY.split(",")
HOT_C = 83  # cards begin to slow down at about this temperature

XID = re.compile(r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)")
AER = re.compile(r"(AER|PCIe Bus Error).*?(?P<kind>Uncorrect|Correct)", re.IGNORECASE)
HUNG = re.compile(r"task (\S+):\d+ blocked for more than|soft lockup.*\[([^:\]]+)")
NVIDIA = ("nv_", "nvidia", "UVM")  # what the driver's own workers are called: nv_queue, nvidia-modeset, UVM GPU1 BH
KILLED = re.compile(r"Out of memory: Killed process \d+ \((?P<name>[^)]*)\)")

ADDRESS = "the process touched GPU memory that is not its own", "usually a bug of the program: note what it ran"
MEMORY = "the card's memory has failed", "run 'nvidia-smi -q -d ECC,ROW_REMAPPER'; have the card replaced if it returns"
STUCK = "the card stopped answering", "reboot; update the driver; test the card in another machine if it returns"
POWER = (
    "the card fell off the bus",
    "check power plugs, supply and riser; add pcie_aspm=off to the kernel's command line; lower the power limit "
    "(sudo nvidia-smi -pl WATTS)",
)
FIRMWARE = (
    "the card's own processor (GSP) does not answer",
    "update the driver; if it returns: echo 'options nvidia NVreg_EnableGpuFirmware=0' | "
    "sudo tee /etc/modprobe.d/nvidia-gsp.conf, then reboot",
)
XIDS: dict[int, tuple[str, str]] = {
    **dict.fromkeys((13, 31, 43, 45), ADDRESS),
    **dict.fromkeys((48, 63, 64, 92, 94, 95), MEMORY),
    **dict.fromkeys((8, 32, 38, 61, 62, 69, 109), STUCK),
    **dict.fromkeys((54, 79), POWER),
    **dict.fromkeys((119, 120), FIRMWARE),
}  # meaning and remedy by number, after NVIDIA's list of Xid errors
HARMLESS = {13, 31, 43, 45}

SELF_SCALING = ("intel_pstate", "amd-pstate-epp")  # their 'powersave' still reaches full speed under load
CPU_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")

Card = Mapping[str, str]


def findings(machine: Host, work: Path) -> Iterator[Finding]:
    """What applies to this machine, in the order it is shown; `work` is where runs and data are written."""
    yield from cards(machine)
    yield from kernel_log(machine)
    yield from pcie_power_saving(machine)
    if (space := machine.space(work)) is not None:
        yield disk(space[1])
    if (shared := machine.space("dev/shm")) is not None:
        yield shared_memory(shared[0])
    yield from swap(machine)
    yield from governor(machine)
    if platform.machine() in ("x86_64", "AMD64"):
        yield from cpu(machine)


def cards(machine: Host) -> Iterator[Finding]:
    """The findings of each card; without an answer of nvidia-smi, whether a driver is loaded."""
    answer = machine.ask(("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"))
    found = read_cards(answer or "")
    for card in found:
        yield ok(f"gpu {card['index']}", f"{card['name'].strip()}, driver {card['driver_version']}")
        yield from settings(card)
        yield from state(card)
    if found:
        return
    if machine.text("proc/driver/nvidia/version") is not None or machine.text("sys/module/nvidia/version"):
        text = "the NVIDIA driver is loaded, but nvidia-smi does not answer"
        yield fail("gpu", text, "reboot; if it stays so, reinstall the driver")
    else:
        yield ok("gpu", "no NVIDIA card answers; training runs on the CPU (--hw cpu)")


def read_cards(answer: str) -> list[Card]:
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]


def _number(card: Card, name: str) -> float | None:
    try:
        return float(card[name])
    except ValueError:
        return None  # [N/A] and [Not Supported]


def settings(card: Card) -> Iterator[Finding]:
    gpu, smi = f"gpu {card['index']}", f"sudo nvidia-smi -i {card['index']}"
    if card["persistence_mode"] == "Enabled":
        yield ok(f"{gpu} persistence", "on")
    elif card["persistence_mode"] == "Disabled":  # Windows has neither
        text = "the driver unloads between runs, each start is slower and settings such as power limits are forgotten"
        yield warn(f"{gpu} persistence", f"off: {text}", f"{smi} -pm 1")
    held, most = _number(card, "clocks.applications.graphics"), _number(card, "clocks.max.graphics")
    if most is not None and held is not None and held < 0.9 * most:
        text = f"held at {held:.0f} of {most:.0f} MHz, which slows training (and makes timings repeatable)"
        yield warn(f"{gpu} clocks", text, f"{smi} -rac; {smi} -rgc")
    elif most is not None:
        yield ok(
            f"{gpu} clocks", f"free up to {most:.0f} MHz ({smi} -lgc MIN,MAX makes timings repeatable, -rgc undoes it)"
        )
    limit, default, highest = (_number(card, f"power.{name}") for name in ("limit", "default_limit", "max_limit"))
    if limit is not None and default is not None:
        text = f"{limit:.0f} W of {default:.0f} W by default" + (f", {highest:.0f} W at most" if highest else "")
        yield warn_if(limit < 0.95 * default, f"{gpu} power limit", text, f"{smi} -pl {default:.0f}")


def state(card: Card) -> Iterator[Finding]:
    """How a card fares. Of its link only the width is judged: an idle card lowers the speed by itself."""
    gpu, smi = f"gpu {card['index']}", f"sudo nvidia-smi -i {card['index']}"
    width, widest = _number(card, "pcie.link.width.current"), _number(card, "pcie.link.width.max")
    if width is not None and widest is not None:
        speed, fastest = card["pcie.link.gen.current"], card["pcie.link.gen.max"]
        text = f"x{width:.0f} of x{widest:.0f}, generation {speed} of {fastest} now"
        remedy = "seat the card again, without a riser, in the slot nearest to the CPU; check the slot in the BIOS"
        yield warn_if(width < widest, f"{gpu} PCIe link", text, remedy)
    if (heat := _number(card, "temperature.gpu")) is not None:
        remedy = f"clear its air path or lower its power limit: {smi} -pl WATTS"
        yield warn_if(heat >= HOT_C, f"{gpu} temperature", f"{heat:.0f} °C", remedy)
    if errors := _number(card, "ecc.errors.uncorrected.volatile.total"):
        text = f"{errors:.0f} uncorrected memory errors since the driver was loaded"
        yield fail(f"{gpu} memory", text, f"{smi} -r, or reboot")


def kernel_log(machine: Host) -> Iterator[Finding]:
    text = machine.ask(("journalctl", "-k", "-b", "--no-pager", "-q")) or machine.ask(("dmesg",))
    if text:
        yield from list(read_log(text)) or [ok("kernel log", "no sign of trouble since the machine started")]
    elif machine.text("proc/version") is not None:
        yield ok("kernel log", "not readable here; look with: sudo dmesg | grep -E 'NVRM|AER|Out of memory'")


def read_log(text: str) -> Iterator[Finding]:
    seen = Counter((int(match["number"]), match["bus"]) for match in XID.finditer(text))
    for (number, bus), times in sorted(seen.items()):
        meaning, remedy = XIDS.get(number, ("the driver reported an error", "look the number up in NVIDIA's Xid list"))
        judge = warn if number in HARMLESS or number not in XIDS else fail
        yield judge(f"kernel log: Xid {number}", f"{meaning} ({times}x, {bus})", remedy)
    hung = Counter(match[1] or match[2] for match in HUNG.finditer(text))
    for name, times in sorted(hung.items()):
        if any(start in name for start in NVIDIA):
            yield fail("kernel log: NVIDIA driver", f"its worker {name} hung ({times}x); {STUCK[0]}", STUCK[1])
        else:
            remedy = "see what it waited for (disk, network, GPU): sudo dmesg | grep -A20 'blocked for more'"
            yield warn("kernel log: hung task", f"{name} ({times}x)", remedy)
    kinds = [match["kind"].lower() for line in text.splitlines() if (match := AER.search(line))]
    if kinds:
        is_bad = "uncorrect" in kinds
        counted = f"{len(kinds)}, {'some of them un' if is_bad else 'all '}corrected"
        remedy = "seat the card again, without a riser; add pcie_aspm=off to the kernel's command line and reboot"
        yield (fail if is_bad else warn)("kernel log: PCIe errors", counted, remedy)
    killed = sorted({match["name"] for match in KILLED.finditer(text)})
    if killed:
        said = f"the kernel killed {', '.join(killed)} for want of memory"
        yield warn("kernel log: memory", said, f"close other programs or add swap: {ADD_SWAP}")


def pcie_power_saving(machine: Host) -> Iterator[Finding]:
    """The chosen policy is in brackets: 'default performance [powersave] powersupersave'."""
    chosen = re.search(r"\[(\w+)\]", machine.text("sys/module/pcie_aspm/parameters/policy") or "")
    if chosen is not None:
        sleeps = chosen[1] in ("powersave", "powersupersave")
        remedy = "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy (or boot with pcie_aspm=off)"
        yield warn_if(sleeps, "PCIe power saving", chosen[1] + ": links sleep, cards can drop out" * sleeps, remedy)


def disk(free: int) -> Finding:
    """Checkpoints of the published model take 0.4 GB each, the large ARC data set 6 GB."""
    text, remedy = f"{free / GIB:.1f} GiB free here", "delete old runs, or give --run and --data on another disk"
    return fail("disk", text, remedy) if free < 2 * GIB else warn_if(free < 20 * GIB, "disk", text, remedy)


def shared_memory(total: int) -> Finding:
    text = f"{total / GIB:.2f} GiB in /dev/shm"
    remedy = "sudo mount -o remount,size=8G /dev/shm, or start the container with --shm-size=8g"
    too_little = ", too little for several GPUs to talk through" if total < GIB else ""
    return warn_if(total < GIB, "shared memory", text + too_little, remedy)


def swap(machine: Host) -> Iterator[Finding]:
    if (memory := read_memory(machine)) is None:
        return
    total, available, of_swap = (mb * MIB / GIB for mb in (memory.total_mb, memory.available_mb, memory.swap_mb))
    text = f"{available:.1f} of {total:.1f} GiB free, swap {of_swap:.1f} GiB"
    is_short = not memory.swap_mb and total < 32
    yield warn_if(is_short, "memory", text + ": a peak of memory ends the run at once" * is_short, ADD_SWAP)


def governor(machine: Host) -> Iterator[Finding]:
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    name, driver = machine.text(f"{folder}/scaling_governor"), machine.text(f"{folder}/scaling_driver") or ""
    if name is not None:
        is_slow = name == "powersave" and driver not in SELF_SCALING
        text = f"{name} ({driver or 'unknown driver'})"
        yield warn_if(is_slow, "CPU governor", text, "sudo cpupower frequency-set -g performance")


def cpu(machine: Host) -> Iterator[Finding]:
    """The vector extensions that training is fast with."""
    if (text := machine.text("proc/cpuinfo")) is not None:
        line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
        flags = line[1].split() if line else []
        found = [name for name in CPU_EXTENSIONS if name in flags]
        said = f"{machine.cpu_model or 'x86-64'}: {', '.join(found) or 'no AVX2'}"
        yield warn_if("avx2" not in flags, "CPU", said, "training on this CPU is very slow; use a GPU")
