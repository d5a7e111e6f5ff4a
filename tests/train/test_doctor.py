"""The training part of the doctor on machines made of text: each fault has its remedy."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from board_tree import board, unwell
from cli_tools import ran

from hrm_host.machine import Host
from hrm_train import doctor
from hrm_train.doctor import TrainingSoftware

HEALTHY_CARD = "0, NVIDIA GeForce RTX 4090, 560.35.03, Enabled, [N/A], 3105, 450.00, 450.00"
SMI = "| NVIDIA-SMI 560.35.03   Driver Version: 560.35.03   CUDA Version: 12.6 |"
TRAINER = TrainingSoftware(
    torch="2.9.0",
    torch_cuda="12.6",
    sees_gpu=True,
    compile_problem=None,
)
FILES = {"proc/version": "Linux version 6.8\n"}


def machine(root: Path, answers: Mapping[str, str], files: Mapping[str, str] = FILES) -> Host:
    """A machine with these files; `answers` has what a command prints by the start of its line."""

    def ask(words: Sequence[str]) -> str | None:
        line = " ".join(words)
        starts = (start for start in answers if line.startswith(start))
        return answers.get(next(starts, ""))

    return replace(board(root, files), ask=ask)


def examined(host: Host, installed: TrainingSoftware) -> dict[str, str]:
    """What is wrong with a machine and its software."""
    software = doctor.software_findings(host, installed)
    return unwell([*software, *doctor.cards(host), *doctor.kernel_log(host)])


def test_a_healthy_machine_needs_nothing(tmp_path: Path):
    answers = {
        "nvidia-smi --query-gpu=index": HEALTHY_CARD,
        "nvidia-smi": SMI,
        "journalctl": "kernel: nothing of note\n",
    }
    assert examined(machine(tmp_path, answers), TRAINER) == {}


def test_a_bare_machine_is_examined_without_an_error(tmp_path: Path):
    problem = "install a compiler: no g++"
    cpu_only = TRAINER._replace(torch_cuda=None, sees_gpu=False, compile_problem=problem)
    assert examined(machine(tmp_path, {}, {}), cpu_only) == {"torch.compile": "warn"}


@pytest.mark.process
def test_a_compiler_that_fails_is_named(tmp_path: Path):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexit 1\n")  # as without the headers of Python
    compiler.chmod(0o755)
    environment = {**os.environ, "CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    program = "from hrm_train import hardware; print(hardware.compile_problem('cpu'))"
    done = ran(sys.executable, "-c", program, env=environment)
    assert re.fullmatch(r"install [^:]*: .*g\+\+.*\n", done.stdout)


@pytest.mark.parametrize(
    ("field", "value", "name", "remedy"),
    [
        ("persistence_mode", "Disabled", "gpu 0 persistence", "sudo nvidia-smi -i 0 -pm 1"),
        ("clocks.applications.graphics", "1500", "gpu 0 clocks", "-rgc"),
        ("power.limit", "300.00", "gpu 0 power limit", "sudo nvidia-smi -i 0 -pl 450"),
    ],
)
def test_a_cards_fault_has_its_remedy(field: str, value: str, name: str, remedy: str):
    (healthy,) = doctor.read_cards(HEALTHY_CARD)
    found = list(doctor.card_findings({**healthy, field: value}))
    assert unwell(found) == {name: "warn"}
    (fault,) = [finding for finding in found if finding.name == name]
    assert remedy in fault.remedy


def test_the_advised_clock_lock_is_no_fault():
    # 000, "nv_queue Blocked Tasks": nvidia-smi -lgc 1980.
    (healthy,) = doctor.read_cards(HEALTHY_CARD)
    locked = {**healthy, "clocks.applications.graphics": "1980"}
    findings = list(doctor.card_findings(locked))
    assert unwell(findings) == {}
    assert any("locked at 1980 of 3105 MHz" in finding.text for finding in findings)


def test_silent_figures_are_not_judged_and_a_silent_driver_is_a_fault(tmp_path: Path):
    silent = {**dict.fromkeys(doctor.FIELDS, "[N/A]"), "index": "0"}
    assert list(doctor.card_findings(silent)) == []
    driver_only = machine(tmp_path, {}, {"proc/driver/nvidia/version": "NVRM version: 560"})
    assert unwell(doctor.cards(driver_only)) == {"gpu": "fail"}


LOG = """\
[  91.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus.
[  92.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus.
[  93.4] NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault
[ 200.7] Out of memory: Killed process 815 (python) total-vm:80000000kB
"""


def test_the_kernel_log_is_read_for_signs_of_trouble():
    found = list(doctor.read_log(LOG))
    assert unwell(found) == {"kernel log: Xid": "warn", "kernel log: memory": "warn"}
    assert found[0].text == "the driver reported the errors 31, 79"


def test_attention_is_tried_and_a_card_without_kernels_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
):
    def no_kernels(*_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    assert doctor.attention().level == "ok"
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", no_kernels)
    finding = doctor.attention()
    assert finding.level == "fail"
    assert "no kernel image" in finding.text
    assert "CUDA build" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"torch": None}, "pip install"),
        ({"torch_cuda": None, "sees_gpu": False}, "CUDA build"),
        ({"torch_cuda": "13.0", "sees_gpu": False}, "update the NVIDIA driver"),
    ],
)
def test_unfit_software_is_a_fault(changes: dict[str, object], remedy: str, tmp_path: Path):
    computer = machine(tmp_path, {"nvidia-smi": SMI}, {})
    installed = TRAINER._replace(**changes)
    found = doctor.software_findings(computer, installed)
    (failed,) = [finding for finding in found if finding.level == "fail"]
    assert remedy in failed.remedy
