"""The graphics cards, as nvidia-smi tells of them: persistence, clocks, power limit, PCIe link, heat, memory errors."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping

from hrm_train.doctor.probe import Finding, Probe

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

Card = Mapping[str, str]


def cards(probe: Probe) -> list[Card] | None:
    """One record for each card; None where nvidia-smi is missing or does not work."""
    answer = probe.command("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    return None if answer is None else read_cards(answer)


def read_cards(answer: str) -> list[Card]:
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]


def findings(probe: Probe) -> Iterator[Finding]:
    found = cards(probe)
    if not found:
        has_card = probe.text("proc/driver/nvidia/version") is not None or probe.text("sys/module/nvidia/version")
        yield _no_card(bool(has_card))
        return
    for card in found:
        yield Finding(
            name=f"gpu {card['index']}", level="ok", text=f"{card['name'].strip()}, driver {card['driver_version']}"
        )
        yield from judged(card)


def _no_card(has_driver: bool) -> Finding:
    if has_driver:
        text = "the NVIDIA driver is loaded, but nvidia-smi does not answer"
        return Finding(name="gpu", level="fail", text=text, remedy="reboot; if it stays so, reinstall the driver")
    return Finding(name="gpu", level="ok", text="no NVIDIA card answers; training runs on the CPU (--hw cpu)")


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
        return Finding(name=f"{gpu} persistence", level="ok", text="on")
    text = "off: the driver unloads between runs, each start is slower and settings such as power limits are forgotten"
    return Finding(name=f"{gpu} persistence", level="warn", text=text, remedy=f"sudo nvidia-smi {which} -pm 1")


def _clocks(card: Card, gpu: str, which: str) -> Finding | None:
    held, most = _number(card, "clocks.applications.graphics"), _number(card, "clocks.max.graphics")
    if most is None:
        return None
    if held is not None and held < 0.9 * most:
        text = f"held at {held:.0f} of {most:.0f} MHz, which slows training (and makes timings repeatable)"
        remedy = f"sudo nvidia-smi {which} -rac; sudo nvidia-smi {which} -rgc"
        return Finding(name=f"{gpu} clocks", level="warn", text=text, remedy=remedy)
    text = f"free up to {most:.0f} MHz (sudo nvidia-smi {which} -lgc MIN,MAX makes timings repeatable, -rgc undoes it)"
    return Finding(name=f"{gpu} clocks", level="ok", text=text)


def _power(card: Card, gpu: str, which: str) -> Finding | None:
    limit, default = _number(card, "power.limit"), _number(card, "power.default_limit")
    most = _number(card, "power.max_limit")
    if limit is None or default is None:
        return None
    text = f"{limit:.0f} W of {default:.0f} W by default" + (f", {most:.0f} W at most" if most else "")
    if limit < 0.95 * default:
        remedy = f"sudo nvidia-smi {which} -pl {default:.0f}"
        return Finding(name=f"{gpu} power limit", level="warn", text=text, remedy=remedy)
    return Finding(name=f"{gpu} power limit", level="ok", text=text)


def _link(card: Card, gpu: str, which: str) -> Finding | None:  # noqa: ARG001
    """Only the width is judged: an idle card lowers its link's speed by itself."""
    width, widest = _number(card, "pcie.link.width.current"), _number(card, "pcie.link.width.max")
    if width is None or widest is None:
        return None
    speed, fastest = card["pcie.link.gen.current"], card["pcie.link.gen.max"]
    text = f"x{width:.0f} of x{widest:.0f}, generation {speed} of {fastest} now"
    if width < widest:
        remedy = "seat the card again, without a riser, in the slot nearest to the CPU; check the slot in the BIOS"
        return Finding(name=f"{gpu} PCIe link", level="warn", text=text, remedy=remedy)
    return Finding(name=f"{gpu} PCIe link", level="ok", text=text)


def _heat(card: Card, gpu: str, which: str) -> Finding | None:
    heat = _number(card, "temperature.gpu")
    if heat is None:
        return None
    if heat >= HOT_C:
        remedy = f"clear its air path or lower its power limit: sudo nvidia-smi {which} -pl WATTS"
        return Finding(name=f"{gpu} temperature", level="warn", text=f"{heat:.0f} °C", remedy=remedy)
    return Finding(name=f"{gpu} temperature", level="ok", text=f"{heat:.0f} °C")


def _memory_errors(card: Card, gpu: str, which: str) -> Finding | None:
    errors = _number(card, "ecc.errors.uncorrected.volatile.total")
    if not errors:
        return None
    text = f"{errors:.0f} uncorrected memory errors since the driver was loaded"
    return Finding(name=f"{gpu} memory", level="fail", text=text, remedy=f"sudo nvidia-smi {which} -r, or reboot")
