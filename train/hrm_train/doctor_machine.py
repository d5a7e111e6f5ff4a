"""The training machine's part of hrm-doctor: graphics cards, the kernel's log, disk and memory."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, warn, warn_if
from hrm_host.machine import Host
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
    "temperature.gpu",
)
HOT_C = 83  # °C at which cards begin to throttle
MIN_CLOCK_SHARE = 0.6  # share of the maximum clock; a lock above it keeps laptops steady
MIN_POWER_SHARE = 0.95  # share of the default power limit

XID = re.compile(r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)")
HUNG = re.compile(r"task (\S+):\d+ blocked for more than|soft lockup.*\[([^:\]]+)")
KILLED = re.compile(r"Out of memory: Killed process \d+ \((?P<name>[^)]*)\)")
DRIVER_WORKERS = ("nv_", "nvidia", "UVM")  # nv_queue, nvidia-modeset, UVM GPU1 BH
APPLICATION_XIDS = {13, 31, 43, 45}  # usually a bug of the program, not of the card
REBOOT = "reboot; update the driver; test the card in another machine if it happens again"
STEADY_DRIVER = (
    "or keep a known pair of driver and CUDA, boot with pcie_aspm=off, run "
    "'sudo nvidia-smi -pm 1' and 'sudo nvidia-smi -lgc MHZ', and train with a smaller batch_size"
)
PCIE_AWAKE = (
    "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy "
    "(or boot with pcie_aspm=off)"
)

MIN_DISK_BYTES = 2 * GIB
ENOUGH_DISK_BYTES = 20 * GIB  # a published model's checkpoint takes 0.4 GB, ARC's data set 6 GB
ENOUGH_MEMORY_MB = 32 * 1024  # without swap

Card = Mapping[str, str]


def findings(machine: Host, work: Path) -> Iterator[Finding]:
    """Findings in the order that the table shows; `work` is where runs and data are written."""
    yield from cards(machine)
    yield from kernel_log(machine)
    yield from pcie_power_saving(machine)
    space = machine.space(work)
    if space is not None:
        _, free_bytes = space
        yield disk(free_bytes)
    yield from swap(machine)


def cards(machine: Host) -> Iterator[Finding]:
    """Findings on each card, or on the driver if nvidia-smi does not answer."""
    query = f"--query-gpu={','.join(FIELDS)}"
    answer = machine.ask(("nvidia-smi", query, "--format=csv,noheader,nounits"))
    found = read_cards(answer or "")
    for card in found:
        yield ok(f"gpu {card['index']}", f"{card['name'].strip()}, driver {card['driver_version']}")
        yield from card_findings(card)
    if found:
        return
    is_loaded = machine.text("proc/driver/nvidia/version") or machine.text(
        "sys/module/nvidia/version"
    )
    if is_loaded:
        text = "the NVIDIA driver is loaded, but nvidia-smi does not answer"
        yield fail("gpu", text, "reboot; if nothing changes, reinstall the driver")
    else:
        yield ok("gpu", "no NVIDIA card answers; training runs on the CPU (--hw cpu)")


def read_cards(answer: str) -> list[Card]:
    cards: list[Card] = []
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        if len(row) == len(FIELDS):
            cards.append(dict(zip(FIELDS, row, strict=True)))
    return cards


def _number(card: Card, name: str) -> float | None:
    try:
        return float(card[name])
    except ValueError:
        return None  # [N/A] and [Not Supported]


def card_findings(card: Card) -> Iterator[Finding]:
    """Settings that slow training, and heat. A value that the card does not report is skipped."""
    yield from _persistence(card)
    yield from _clocks(card)
    yield from _power_limit(card)
    celsius = _number(card, "temperature.gpu")
    if celsius is not None:
        remedy = f"clear its air path or lower its power limit: {_smi(card)} -pl WATTS"
        name = f"gpu {card['index']} temperature"
        yield warn_if(celsius >= HOT_C, name, f"{celsius:.0f} °C", remedy)


def _smi(card: Card) -> str:
    return f"sudo nvidia-smi -i {card['index']}"


def _persistence(card: Card) -> Iterator[Finding]:
    """Find a card whose driver unloads between runs; Windows does not report the mode."""
    name = f"gpu {card['index']} persistence"
    if card["persistence_mode"] == "Enabled":
        yield ok(name, "on")
    elif card["persistence_mode"] == "Disabled":
        text = "off: the driver unloads between runs and forgets settings such as power limits"
        yield warn(name, text, f"{_smi(card)} -pm 1")


def _clocks(card: Card) -> Iterator[Finding]:
    name = f"gpu {card['index']} clocks"
    smi = _smi(card)
    current_mhz = _number(card, "clocks.applications.graphics")
    max_mhz = _number(card, "clocks.max.graphics")
    if max_mhz is None:
        return
    if current_mhz is not None and current_mhz < MIN_CLOCK_SHARE * max_mhz:
        text = f"locked at {current_mhz:.0f} of {max_mhz:.0f} MHz, which slows training"
        yield warn(name, text, f"{smi} -rac; {smi} -rgc")
        return
    state = f"free up to {max_mhz:.0f} MHz"
    if current_mhz is not None and current_mhz < max_mhz:
        state = f"locked at {current_mhz:.0f} of {max_mhz:.0f} MHz"
    yield ok(name, f"{state} ({smi} -lgc MIN,MAX keeps clocks steady, -rgc undoes it)")


def _power_limit(card: Card) -> Iterator[Finding]:
    limit_w = _number(card, "power.limit")
    default_w = _number(card, "power.default_limit")
    if limit_w is None or default_w is None:
        return
    text = f"{limit_w:.0f} W; the default is {default_w:.0f} W"
    name = f"gpu {card['index']} power limit"
    yield warn_if(
        limit_w < MIN_POWER_SHARE * default_w, name, text, f"{_smi(card)} -pl {default_w:.0f}"
    )


def kernel_log(machine: Host) -> Iterator[Finding]:
    text = machine.ask(("journalctl", "-k", "-b", "--no-pager", "-q")) or machine.ask(("dmesg",))
    if text:
        found = list(read_log(text))
        yield from found or [ok("kernel log", "no errors since the machine started")]
    elif machine.text("proc/version") is not None:
        yield ok("kernel log", "not readable; run: sudo dmesg | grep -E 'NVRM|Out of memory'")


def read_log(text: str) -> Iterator[Finding]:
    """Errors that the driver reported, driver workers that hung, and programs the kernel killed."""
    yield from _xid_errors(text)
    yield from _hung_workers(text)
    killed = {match["name"] for match in KILLED.finditer(text)}
    if killed:
        names = ", ".join(sorted(killed))
        remedy = f"close other programs or add swap: {ADD_SWAP}"
        yield warn("kernel log: memory", f"out of memory, the kernel killed {names}", remedy)


def _xid_errors(text: str) -> Iterator[Finding]:
    seen = Counter((int(match["number"]), match["bus"]) for match in XID.finditer(text))
    for (number, bus), count in sorted(seen.items()):
        name = f"kernel log: Xid {number}"
        found = f"the driver reported an error ({count}x, {bus})"
        remedy = f"look up {number} in NVIDIA's list of Xid errors"
        if number in APPLICATION_XIDS:
            yield warn(name, found, f"{remedy}; usually the program has a bug")
        else:
            yield fail(name, found, f"{remedy}; {REBOOT}")


def _hung_workers(text: str) -> Iterator[Finding]:
    hung = Counter(match[1] or match[2] for match in HUNG.finditer(text))
    for name, count in sorted(hung.items()):
        if any(start in name for start in DRIVER_WORKERS):
            found = f"its worker {name} hung ({count}x); the card stopped answering"
            yield fail("kernel log: NVIDIA driver", found, f"{REBOOT}; {STEADY_DRIVER}")


def pcie_power_saving(machine: Host) -> Iterator[Finding]:
    """Read the policy in brackets: 'default performance [powersave] powersupersave'."""
    policies = machine.text("sys/module/pcie_aspm/parameters/policy") or ""
    chosen = re.search(r"\[(\w+)\]", policies)
    if chosen is None:
        return
    text = chosen[1]
    sleeps = text in ("powersave", "powersupersave")
    if sleeps:
        text += ": links sleep, and cards can drop out"
    yield warn_if(sleeps, "PCIe power saving", text, PCIE_AWAKE)


def disk(free_bytes: int) -> Finding:
    text = f"{free_bytes / GIB:.1f} GiB free here"
    remedy = "delete old runs, or put --run and --data on another disk"
    if free_bytes < MIN_DISK_BYTES:
        return fail("disk", text, remedy)
    return warn_if(free_bytes < ENOUGH_DISK_BYTES, "disk", text, remedy)


def swap(machine: Host) -> Iterator[Finding]:
    memory = read_memory(machine)
    if memory is None:
        return
    available_gib = memory.available_mb * MIB / GIB
    total_gib = memory.total_mb * MIB / GIB
    swap_gib = memory.swap_mb * MIB / GIB
    text = f"{available_gib:.1f} of {total_gib:.1f} GiB free, swap {swap_gib:.1f} GiB"
    is_short = not memory.swap_mb and memory.total_mb < ENOUGH_MEMORY_MB
    if is_short:
        text += ": a peak of memory kills the run"
    yield warn_if(is_short, "memory", text, ADD_SWAP)
