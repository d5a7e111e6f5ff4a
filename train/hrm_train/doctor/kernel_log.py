"""Signs of driver trouble in the kernel's log: NVIDIA's Xid reports, PCIe errors, processes killed for memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from hrm_train.doctor.probe import Finding, Probe

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


def findings(probe: Probe) -> Iterator[Finding]:
    text = probe.command("journalctl", "-k", "-b", "--no-pager", "-q") or probe.command("dmesg")
    if text:
        yield from read_log(text)
    elif probe.text("proc/version") is not None:
        look = "not readable here; look with: sudo dmesg | grep -E 'NVRM|AER|Out of memory'"
        yield Finding(name="kernel log", level="ok", text=look)


def read_log(text: str) -> list[Finding]:
    """One finding for each kind of trouble, or one that says there is none."""
    found = [*_xids(text), *_bus_errors(text), *_killed(text)]
    return found or [Finding(name="kernel log", level="ok", text="no sign of trouble since the machine started")]


def _xids(text: str) -> Iterator[Finding]:
    seen = Counter((int(match["number"]), match["bus"]) for match in XID.finditer(text))
    for (number, bus), times in sorted(seen.items()):
        meaning, remedy = XIDS.get(number, ("the driver reported an error", "look the number up in NVIDIA's Xid list"))
        level = "warn" if number in HARMLESS or number not in XIDS else "fail"
        yield Finding(name=f"kernel log: Xid {number}", level=level, text=f"{meaning} ({times}x, {bus})", remedy=remedy)


def _bus_errors(text: str) -> Iterator[Finding]:
    kinds = [match["kind"].lower() for line in text.splitlines() if (match := AER.search(line))]
    if kinds:
        is_bad = "uncorrect" in kinds
        yield Finding(
            name="kernel log: PCIe errors",
            level="fail" if is_bad else "warn",
            text=f"{len(kinds)}, {'some of them un' if is_bad else 'all '}corrected",
            remedy="seat the card again, without a riser; add pcie_aspm=off to the kernel's command line and reboot",
        )


def _killed(text: str) -> Iterator[Finding]:
    names = sorted({match["name"] for match in KILLED.finditer(text)})
    if names:
        yield Finding(
            name="kernel log: memory",
            level="warn",
            text=f"the kernel killed {', '.join(names)} for want of memory",
            remedy="close other programs or add swap: sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && "
            "sudo mkswap /swapfile && sudo swapon /swapfile",
        )
