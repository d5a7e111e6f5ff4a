"""The doctor over machines made of text: what each answer means, and that a bare machine is no error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hrm_train.doctor import gpu, kernel_log, software, system
from hrm_train.doctor.examination import examine
from hrm_train.doctor.probe import GIB, Finding, Probe, answer_of
from hrm_train.doctor.software import Software

HEALTHY = "0, NVIDIA GeForce RTX 4090, 560.35.03, Enabled, [N/A], 3105, 450.00, 450.00, 600.00, 1, 4, 16, 16, 41, [N/A]"
SMI = "| NVIDIA-SMI 560.35.03   Driver Version: 560.35.03   CUDA Version: 12.6 |"
INSTALLED = Software(
    python=(3, 11, 7),
    torch="2.9.0",
    torch_cuda="12.6",
    sees_gpu=True,
    architectures=("sm_80", "sm_86", "sm_90"),
    has_triton=True,
    compiler="/usr/bin/cc",
)
FILES = {
    "sys/module/pcie_aspm/parameters/policy": "default [performance] powersave powersupersave\n",
    "proc/meminfo": "MemTotal: 65000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 8000000 kB\n",
    "proc/version": "Linux version 6.8\n",
    "proc/cpuinfo": "model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f amx_tile\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
}


def machine(root: Path, answers: Mapping[str, str], files: Mapping[str, str] = FILES) -> Probe:
    """A machine with these files; a command answers by the start of its line."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def ask(words: Sequence[str]) -> str | None:
        line = " ".join(words)
        return next((text for start, text in answers.items() if line.startswith(start)), None)

    return Probe(root=root, work=root, ask=ask)


def card(**changes: str) -> dict[str, str]:
    record = dict(gpu.read_cards(HEALTHY)[0])
    return {**record, **{name.replace("__", "."): value for name, value in changes.items()}}


def unwell(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}


def test_a_healthy_machine_needs_nothing(tmp_path: Path) -> None:
    answers = {
        "nvidia-smi --query-gpu=index": HEALTHY,
        "nvidia-smi --query-gpu=compute_cap": "8.9",
        "nvidia-smi": SMI,
        "journalctl": "kernel: nothing of note\n",
    }
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    found = examine(machine(tmp_path, answers), INSTALLED)
    assert {name for name in unwell(found) if name != "disk"} <= {"shared memory"}  # both are this machine's own
    assert "sm_80 serves compute capability 8.9" in [finding.text for finding in found]


def test_a_bare_machine_is_examined_without_an_error(tmp_path: Path) -> None:
    cpu_only = replace(INSTALLED, torch_cuda=None, sees_gpu=False, architectures=(), compiler=None, has_triton=False)
    found = examine(machine(tmp_path, {}, {}), cpu_only)
    assert "fail" not in {finding.level for finding in found if finding.name != "disk"}
    assert "torch.compile" in unwell(found)


@pytest.mark.parametrize(
    ("changes", "name", "level", "remedy"),
    [
        ({"persistence_mode": "Disabled"}, "gpu 0 persistence", "warn", "sudo nvidia-smi -i 0 -pm 1"),
        ({"clocks__applications__graphics": "1200"}, "gpu 0 clocks", "warn", "-rgc"),
        ({"power__limit": "300.00"}, "gpu 0 power limit", "warn", "sudo nvidia-smi -i 0 -pl 450"),
        ({"pcie__link__width__current": "4"}, "gpu 0 PCIe link", "warn", "seat the card"),
        ({"temperature__gpu": "88"}, "gpu 0 temperature", "warn", "-pl WATTS"),
        ({"ecc__errors__uncorrected__volatile__total": "3"}, "gpu 0 memory", "fail", "reboot"),
    ],
)
def test_each_fault_of_a_card_has_its_remedy(changes: dict[str, str], name: str, level: str, remedy: str) -> None:
    found = [finding for finding in gpu.judged(card(**changes)) if finding.level != "ok"]
    assert [(finding.name, finding.level) for finding in found] == [(name, level)]
    assert remedy in found[0].remedy


def test_what_a_card_does_not_tell_is_not_judged() -> None:
    silent = dict.fromkeys(gpu.FIELDS, "[N/A]")
    assert list(gpu.judged({**silent, "index": "0"})) == []


def test_a_loaded_driver_without_an_answer_is_a_fault(tmp_path: Path) -> None:
    probe = machine(tmp_path, {}, {"proc/driver/nvidia/version": "NVRM version: 560"})
    assert unwell(list(gpu.findings(probe))) == {"gpu": "fail"}


LOG = """\
[  91.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  92.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  93.4] NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault
[  94.0] NVRM: Xid (PCI:0000:02:00): 119, pid=17, name=x, Timeout waiting for RPC from GSP!
[  95.0] NVRM: Xid (PCI:0000:02:00): 999, something new
[ 100.2] pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0
[ 200.7] Out of memory: Killed process 815 (python) total-vm:80000000kB
"""


def test_the_kernel_log_is_read_for_signs_of_trouble() -> None:
    found = {finding.name: finding for finding in kernel_log.read_log(LOG)}
    assert {name: finding.level for name, finding in found.items()} == {
        "kernel log: Xid 31": "warn",
        "kernel log: Xid 79": "fail",
        "kernel log: Xid 119": "fail",
        "kernel log: Xid 999": "warn",
        "kernel log: PCIe errors": "warn",
        "kernel log: memory": "warn",
    }
    assert "fell off the bus (2x, PCI:0000:01:00)" in found["kernel log: Xid 79"].text
    assert "pcie_aspm=off" in found["kernel log: Xid 79"].remedy
    assert "GpuFirmware" in found["kernel log: Xid 119"].remedy


def test_uncorrected_bus_errors_are_worse_than_corrected_ones() -> None:
    line = "nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
    assert [finding.level for finding in kernel_log.read_log(line)] == ["fail"]


def test_a_quiet_log_is_well() -> None:
    assert unwell(kernel_log.read_log("usb 1-1: new device\n")) == {}


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (system.aspm("default performance [powersave] powersupersave"), "warn"),
        (system.aspm("[default] performance powersave powersupersave"), "ok"),
        (system.disk(GIB), "fail"),
        (system.disk(10 * GIB), "warn"),
        (system.disk(100 * GIB), "ok"),
        (system.shared_memory(64 << 20), "warn"),
        (system.memory("MemTotal: 16000000 kB\nMemAvailable: 9 kB\nSwapTotal: 0 kB\n"), "warn"),
        (system.judged_governor("powersave", "acpi-cpufreq"), "warn"),
        (system.judged_governor("powersave", "intel_pstate"), "ok"),
        (system.cpu("flags : fpu sse2\n"), "warn"),
    ],
)
def test_the_machine_around_the_card_is_judged(finding: Finding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"torch": None}, "pip install"),
        ({"torch_cuda": None, "sees_gpu": False}, "CUDA build"),
        ({"torch_cuda": "13.0", "sees_gpu": False}, "update the NVIDIA driver"),
        ({"torch_cuda": "12.4", "sees_gpu": False}, "CUDA_VISIBLE_DEVICES"),
        ({"python": (3, 9, 1)}, "3.10"),
    ],
)
def test_software_that_does_not_fit_is_a_fault(changes: dict[str, object], remedy: str, tmp_path: Path) -> None:
    probe = machine(tmp_path, {"nvidia-smi --query": "8.9", "nvidia-smi": SMI}, {})
    found = list(software.findings(probe, replace(INSTALLED, **changes)))  # type: ignore[arg-type]
    assert [remedy in finding.remedy for finding in found if finding.level == "fail"] == [True]


@pytest.mark.parametrize(
    ("architectures", "capability", "level"),
    [
        (("sm_80", "sm_90"), "8.9", "ok"),
        (("sm_80", "sm_90"), "12.0", "fail"),
        (("sm_90", "compute_90"), "12.0", "ok"),
        (("sm_100", "sm_120"), "12.0", "ok"),
        (("sm_90a",), "9.0", "ok"),
        (("sm_86",), "8.0", "fail"),
    ],
)
def test_kernels_serve_their_own_generation_and_what_is_newer_through_ptx(
    architectures: tuple[str, ...], capability: str, level: str
) -> None:
    assert software.architecture(replace(INSTALLED, architectures=architectures), capability).level == level


def test_a_missing_or_failing_command_gives_no_answer() -> None:
    assert answer_of(["no-such-command-at-all"]) is None
    assert answer_of([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert answer_of([sys.executable, "-c", "print('hello')"]) == "hello\n"
