"""The machine that trains: graphics cards (nvidia-smi), the kernel's log, PCIe power saving, disk, memory, CPU."""

import csv
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hrm_host.board import Host
from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, warn
from hrm_host.memory import GIB, MIB, read_memory

FIELDS = (
    "index",
    "name",
    "driver_version",
    "persistence_mode",
    "clocks.applications.graphics",
    "clocks.max.graphics",
    "power.limit",
    "power.default_limit",
    "power.max_limit",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
)
HOT_C = 83
"""At about this temperature cards begin to slow down."""

XID = re.compile(r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)")
AER = re.compile(r"(AER|PCIe Bus Error).*?(?P<kind>Uncorrect|Correct)", re.IGNORECASE)
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
}
"""Meaning and remedy by number, after NVIDIA's list of Xid errors."""
HARMLESS = {13, 31, 43, 45}

SELF_SCALING = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose 'powersave' governor still reaches full speed under load."""
CPU_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")

Card = Mapping[str, str]


def findings(machine: Host, work: Path) -> Iterator[Finding]:
    """What applies to this machine, in the order it is shown; `work` is where runs and data are written."""
    yield from cards(machine)
    yield from kernel_log(machine)
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


def cards(machine: Host) -> Iterator[Finding]:
    """The findings of each card; without an answer of nvidia-smi, whether a driver is loaded."""
    answer = machine.command("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    found = read_cards(answer or "")
    if not found:
        has_card = machine.text("proc/driver/nvidia/version") is not None or machine.text("sys/module/nvidia/version")
        yield _no_card(bool(has_card))
        return
    for card in found:
        yield ok(f"gpu {card['index']}", f"{card['name'].strip()}, driver {card['driver_version']}")
        yield from judged(card)


def read_cards(answer: str) -> list[Card]:
    """One record for each card."""
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]


def _no_card(has_driver: bool) -> Finding:
    if has_driver:
        text = "the NVIDIA driver is loaded, but nvidia-smi does not answer"
        return fail("gpu", text, "reboot; if it stays so, reinstall the driver")
    return ok("gpu", "no NVIDIA card answers; training runs on the CPU (--hw cpu)")


def judged(card: Card) -> Iterator[Finding]:
    """What one card's record means."""
    for check in (_persistence, _clocks, _power, _link, _heat, _memory_errors):
        finding = check(card, f"gpu {card['index']}", f"-i {card['index']}")
        if finding is not None:
            yield finding


def _number(card: Card, name: str) -> float | None:
    try:
        return float(card[name])
    except ValueError:
        return None  # [N/A] and [Not Supported]


def _persistence(card: Card, gpu: str, which: str) -> Finding | None:
    if card["persistence_mode"] not in ("Enabled", "Disabled"):
        return None  # Windows has none
    if card["persistence_mode"] == "Enabled":
        return ok(f"{gpu} persistence", "on")
    text = "off: the driver unloads between runs, each start is slower and settings such as power limits are forgotten"
    return warn(f"{gpu} persistence", text, f"sudo nvidia-smi {which} -pm 1")


def _clocks(card: Card, gpu: str, which: str) -> Finding | None:
    held, most = _number(card, "clocks.applications.graphics"), _number(card, "clocks.max.graphics")
    if most is None:
        return None
    if held is not None and held < 0.9 * most:
        text = f"held at {held:.0f} of {most:.0f} MHz, which slows training (and makes timings repeatable)"
        remedy = f"sudo nvidia-smi {which} -rac; sudo nvidia-smi {which} -rgc"
        return warn(f"{gpu} clocks", text, remedy)
    text = f"free up to {most:.0f} MHz (sudo nvidia-smi {which} -lgc MIN,MAX makes timings repeatable, -rgc undoes it)"
    return ok(f"{gpu} clocks", text)


def _power(card: Card, gpu: str, which: str) -> Finding | None:
    limit, default = _number(card, "power.limit"), _number(card, "power.default_limit")
    most = _number(card, "power.max_limit")
    if limit is None or default is None:
        return None
    text = f"{limit:.0f} W of {default:.0f} W by default" + (f", {most:.0f} W at most" if most else "")
    if limit < 0.95 * default:
        remedy = f"sudo nvidia-smi {which} -pl {default:.0f}"
        return warn(f"{gpu} power limit", text, remedy)
    return ok(f"{gpu} power limit", text)


def _link(card: Card, gpu: str, which: str) -> Finding | None:  # noqa: ARG001
    """Only the width is judged: an idle card lowers its link's speed by itself."""
    width, widest = _number(card, "pcie.link.width.current"), _number(card, "pcie.link.width.max")
    if width is None or widest is None:
        return None
    speed, fastest = card["pcie.link.gen.current"], card["pcie.link.gen.max"]
    text = f"x{width:.0f} of x{widest:.0f}, generation {speed} of {fastest} now"
    if width < widest:
        remedy = "seat the card again, without a riser, in the slot nearest to the CPU; check the slot in the BIOS"
        return warn(f"{gpu} PCIe link", text, remedy)
    return ok(f"{gpu} PCIe link", text)


def _heat(card: Card, gpu: str, which: str) -> Finding | None:
    heat = _number(card, "temperature.gpu")
    if heat is None:
        return None
    if heat >= HOT_C:
        remedy = f"clear its air path or lower its power limit: sudo nvidia-smi {which} -pl WATTS"
        return warn(f"{gpu} temperature", f"{heat:.0f} °C", remedy)
    return ok(f"{gpu} temperature", f"{heat:.0f} °C")


def _memory_errors(card: Card, gpu: str, which: str) -> Finding | None:
    errors = _number(card, "ecc.errors.uncorrected.volatile.total")
    if not errors:
        return None
    text = f"{errors:.0f} uncorrected memory errors since the driver was loaded"
    return fail(f"{gpu} memory", text, f"sudo nvidia-smi {which} -r, or reboot")


def kernel_log(machine: Host) -> Iterator[Finding]:
    text = machine.command("journalctl", "-k", "-b", "--no-pager", "-q") or machine.command("dmesg")
    if text:
        yield from read_log(text)
    elif machine.text("proc/version") is not None:
        yield ok("kernel log", "not readable here; look with: sudo dmesg | grep -E 'NVRM|AER|Out of memory'")


def read_log(text: str) -> list[Finding]:
    """One finding for each kind of trouble, or one that says there is none."""
    found = [*_xids(text), *_bus_errors(text), *_killed(text)]
    return found or [ok("kernel log", "no sign of trouble since the machine started")]


def _xids(text: str) -> Iterator[Finding]:
    seen = Counter((int(match["number"]), match["bus"]) for match in XID.finditer(text))
    for (number, bus), times in sorted(seen.items()):
        meaning, remedy = XIDS.get(number, ("the driver reported an error", "look the number up in NVIDIA's Xid list"))
        judge = warn if number in HARMLESS or number not in XIDS else fail
        yield judge(f"kernel log: Xid {number}", f"{meaning} ({times}x, {bus})", remedy)


def _bus_errors(text: str) -> Iterator[Finding]:
    kinds = [match["kind"].lower() for line in text.splitlines() if (match := AER.search(line))]
    if kinds:
        is_bad = "uncorrect" in kinds
        text = f"{len(kinds)}, {'some of them un' if is_bad else 'all '}corrected"
        remedy = "seat the card again, without a riser; add pcie_aspm=off to the kernel's command line and reboot"
        yield (fail if is_bad else warn)("kernel log: PCIe errors", text, remedy)


def _killed(text: str) -> Iterator[Finding]:
    names = sorted({match["name"] for match in KILLED.finditer(text)})
    if names:
        text = f"the kernel killed {', '.join(names)} for want of memory"
        yield warn("kernel log: memory", text, f"close other programs or add swap: {ADD_SWAP}")


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
    found = [name for name in CPU_EXTENSIONS if name in flags]
    said = f"{machine.cpu_model or 'x86-64'}: {', '.join(found) or 'no AVX2'}"
    if "avx2" not in flags:
        return warn("CPU", said, "training on this CPU is very slow; use a GPU")
    return ok("CPU", said)
