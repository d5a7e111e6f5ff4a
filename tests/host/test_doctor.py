"""The doctor over machines made of text: what each answer means, its remedy, and that a bare machine is no error."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from board_tree import ORIN, board

from hrm_host.board import Host, answer_of
from hrm_host.doctor import Finding, cli, training
from hrm_host.doctor.cli import ServingSoftware
from hrm_host.memory import GIB
from hrm_train import doctor
from hrm_train.doctor import TrainingSoftware

JETPACK_62 = ServingSoftware(
    python=(3, 10, 12), onnxruntime=None, providers=(), tensorrt="10.3.0", cuda_driver="12.9.5", num_gpus=1
)
PC = ServingSoftware(
    python=(3, 12, 1), onnxruntime="1.23.0", providers=("CPUExecutionProvider",), tensorrt=None, cuda_driver=None
)
HEALTHY = "0, NVIDIA GeForce RTX 4090, 560.35.03, Enabled, [N/A], 3105, 450.00, 450.00, 600.00, 1, 4, 16, 16, 41, [N/A]"
SMI = "| NVIDIA-SMI 560.35.03   Driver Version: 560.35.03   CUDA Version: 12.6 |"
TRAINER = TrainingSoftware(
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


def machine(root: Path, answers: Mapping[str, str], files: Mapping[str, str] = FILES) -> Host:
    """A machine with these files; a command answers by the start of its line."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def ask(words: Sequence[str]) -> str | None:
        line = " ".join(words)
        return next((text for start, text in answers.items() if line.startswith(start)), None)

    return Host(root=root, ask=ask)


def card(**changes: str) -> dict[str, str]:
    record = dict(training.read_cards(HEALTHY)[0])
    return {**record, **{name.replace("__", "."): value for name, value in changes.items()}}


def unwell(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}


def examined(host: Host, installed: TrainingSoftware, work: Path) -> list[Finding]:
    return [*doctor.software_findings(host, installed), *training.findings(host, work)]


def test_a_healthy_machine_needs_nothing(tmp_path: Path) -> None:
    answers = {
        "nvidia-smi --query-gpu=index": HEALTHY,
        "nvidia-smi --query-gpu=compute_cap": "8.9",
        "nvidia-smi": SMI,
        "journalctl": "kernel: nothing of note\n",
    }
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    found = examined(machine(tmp_path, answers), TRAINER, tmp_path)
    assert {name for name in unwell(found) if name != "disk"} <= {"shared memory"}  # both are this machine's own
    assert "sm_80 serves compute capability 8.9" in [finding.text for finding in found]


def test_a_bare_machine_is_examined_without_an_error(tmp_path: Path) -> None:
    cpu_only = replace(TRAINER, torch_cuda=None, sees_gpu=False, architectures=(), compiler=None, has_triton=False)
    found = examined(machine(tmp_path, {}, {}), cpu_only, tmp_path)
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
    found = [
        finding
        for finding in [*training.settings(card(**changes)), *training.state(card(**changes))]
        if finding.level != "ok"
    ]
    assert [(finding.name, finding.level) for finding in found] == [(name, level)]
    assert remedy in found[0].remedy


def test_what_a_card_does_not_tell_is_not_judged() -> None:
    silent = {**dict.fromkeys(training.FIELDS, "[N/A]"), "index": "0"}
    assert [*training.settings(silent), *training.state(silent)] == []


def test_a_loaded_driver_without_an_answer_is_a_fault(tmp_path: Path) -> None:
    driver_only = machine(tmp_path, {}, {"proc/driver/nvidia/version": "NVRM version: 560"})
    assert unwell(list(training.cards(driver_only))) == {"gpu": "fail"}


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
    found = {finding.name: finding for finding in training.read_log(LOG)}
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


def test_workers_of_the_driver_that_hang_are_a_fault_and_others_a_warning() -> None:
    log = """\
[ 363.1] INFO: task nv_queue:512 blocked for more than 122 seconds.
[ 485.9] INFO: task nv_queue:512 blocked for more than 245 seconds.
[ 490.0] watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [UVM GPU1 BH:901]
[ 500.0] INFO: task jbd2/sda1-8:77 blocked for more than 122 seconds.
"""
    found = [(finding.level, finding.text) for finding in training.read_log(log)]
    assert [level for level, _ in found] == ["fail", "warn", "fail"]
    assert found[0][1].startswith("its worker UVM GPU1 BH hung (1x)")
    assert found[1][1] == "jbd2/sda1-8 (1x)"
    assert found[2][1].startswith("its worker nv_queue hung (2x); the card stopped answering")


def test_attention_is_tried_and_timed() -> None:
    (finding,) = doctor.attention()
    assert finding.level == "ok"
    assert re.match(r"\d+\.\d ms for 900 tokens, forward and backward", finding.text)


def test_uncorrected_bus_errors_are_worse_than_corrected_ones() -> None:
    line = "nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
    assert [finding.level for finding in training.read_log(line)] == ["fail"]


def test_a_quiet_log_is_well(tmp_path: Path) -> None:
    (finding,) = training.kernel_log(machine(tmp_path, {"journalctl": "usb 1-1: new device\n"}))
    assert (finding.level, finding.text) == ("ok", "no sign of trouble since the machine started")


GOVERNOR, DRIVER = (f"sys/devices/system/cpu/cpu0/cpufreq/scaling_{name}" for name in ("governor", "driver"))
ASPM = "sys/module/pcie_aspm/parameters/policy"


@pytest.mark.parametrize(
    ("check", "files", "level"),
    [
        (training.pcie_power_saving, {ASPM: "default performance [powersave] powersupersave"}, "warn"),
        (training.pcie_power_saving, {ASPM: "[default] performance powersave powersupersave"}, "ok"),
        (training.swap, {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 9 kB\nSwapTotal: 0 kB\n"}, "warn"),
        (training.governor, {GOVERNOR: "powersave", DRIVER: "acpi-cpufreq"}, "warn"),
        (training.governor, {GOVERNOR: "powersave", DRIVER: "intel_pstate"}, "ok"),
        (training.cpu, {"proc/cpuinfo": "flags : fpu sse2\n"}, "warn"),
        (lambda _: [training.disk(GIB)], {}, "fail"),
        (lambda _: [training.disk(10 * GIB)], {}, "warn"),
        (lambda _: [training.disk(100 * GIB)], {}, "ok"),
        (lambda _: [training.shared_memory(64 << 20)], {}, "warn"),
    ],
)
def test_the_machine_around_the_card_is_judged(
    tmp_path: Path, check: Callable[[Host], Iterable[Finding]], files: dict[str, str], level: str
) -> None:
    (finding,) = check(machine(tmp_path, {}, files))
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
    computer = machine(tmp_path, {"nvidia-smi --query": "8.9", "nvidia-smi": SMI}, {})
    found = list(doctor.software_findings(computer, replace(TRAINER, **changes)))  # type: ignore[arg-type]
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
    assert doctor.architecture(replace(TRAINER, architectures=architectures), capability).level == level


@pytest.mark.process
def test_a_missing_or_failing_command_gives_no_answer() -> None:
    assert answer_of(["no-such-command-at-all"]) is None
    assert answer_of([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert answer_of([sys.executable, "-c", "print('hello')"]) == "hello\n"


def test_a_healthy_board_needs_nothing(tmp_path: Path) -> None:
    found = cli.findings(board(tmp_path), JETPACK_62)
    assert unwell(found) == {}
    said = {finding.name: finding.text for finding in found}
    assert said["board"].startswith("NVIDIA Jetson Orin Nano")
    assert said["JetPack"] == "6 (L4T 36.4.3)"
    assert said["power mode"] == "MAXN_SUPER"
    assert said["CUDA"] == "12.6.11"
    assert "306 MHz now, 306 to 1020 allowed" in said["GPU clock"]
    assert said["memory"] == "5.8 of 7.4 GiB free, swap 3.7 GiB, 3.7 of it zram"
    assert "cpu-thermal" in said["temperature"] or "gpu-thermal" in said["temperature"]


@pytest.mark.parametrize(
    ("changes", "name", "level", "remedy"),
    [
        ({"status": "pmode:0000"}, "power mode", "warn", "sudo nvpmodel -m 2"),
        ({"status": ""}, "power mode", "warn", "sudo nvpmodel -q"),
        ({"nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 1"}, "JetPack", "fail", "flash JetPack 6.2"),
        ({"nv_tegra_release": "# R36 (release), REVISION: 3.0, GCID: 1"}, "JetPack", "fail", "flash JetPack 6.2"),
        ({"nv_tegra_release": "something else"}, "JetPack", "warn", "SDK Manager"),
        ({"max_freq": "624750000"}, "GPU clock", "warn", "power mode"),
        ({"oc1_event_cnt": "7"}, "throttling", "warn", "power supply"),
        ({"temp": "99500"}, "temperature", "warn", "air path"),
        ({"meminfo": "MemTotal: 7802764 kB\nMemAvailable: 900000 kB\n"}, "memory", "warn", "leave the desktop"),
        ({"meminfo": "MemTotal: 7802764 kB\nMemAvailable: 90000 kB\n"}, "memory", "fail", "leave the desktop"),
    ],
)
def test_each_fault_of_a_board_has_its_remedy(
    tmp_path: Path, changes: dict[str, str], name: str, level: str, remedy: str
) -> None:
    found = cli.findings(board(tmp_path, ORIN, **changes), JETPACK_62)
    assert unwell(found) == {name: level}
    assert remedy in next(finding.remedy for finding in found if finding.name == name)


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"tensorrt": None}, "TensorRT", "python3-libnvinfer"),
        ({"tensorrt": "8.6.2"}, "TensorRT", "JetPack 6.2"),
        ({"cuda_driver": None}, "CUDA bindings", "hrm-edge[jetson]"),
        ({"num_gpus": 0, "gpu_fault": "cuInit gives driver error 100"}, "GPU", "--runtime nvidia"),
        ({"tensorrt_fault": "libnvdla_compiler.so: no such file"}, "TensorRT", "nvidia-l4t-dla-compiler"),
        ({"python": (3, 8, 10)}, "Python", "3.10"),
    ],
)
def test_software_that_a_board_lacks_is_a_fault(
    tmp_path: Path, changes: dict[str, object], name: str, remedy: str
) -> None:
    found = cli.findings(board(tmp_path), replace(JETPACK_62, **changes))  # type: ignore[arg-type]
    assert {finding.name: remedy in finding.remedy for finding in found if finding.level == "fail"} == {name: True}


def test_a_pc_is_not_asked_for_what_only_a_board_has(tmp_path: Path) -> None:
    found = cli.findings(Host(root=tmp_path), PC)
    assert unwell(found) == {}
    assert not {"board", "JetPack", "power mode", "CUDA"} & {finding.name for finding in found}
    missing = cli.findings(Host(root=tmp_path), replace(PC, onnxruntime=None))
    assert unwell(missing) == {"ONNX Runtime": "fail"}


def test_a_full_disk_has_no_room_for_engines() -> None:
    assert cli.engine_cache(free=100 << 20).level == "fail"


@pytest.mark.process
def test_a_tensorrt_that_is_installed_and_does_not_load_is_found(tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvdla_compiler.so: cannot open shared object file')")
    program = "from hrm_host.doctor import cli; print(cli.look().tensorrt_fault)"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.startswith("libnvdla_compiler.so")


def test_the_zone_nearest_to_its_own_limit_is_told(tmp_path: Path) -> None:
    (finding,) = cli.heat(board(tmp_path))
    assert finding.text == "gpu-thermal 52 °C, slowed down from 85 °C"  # 33 degrees left; the CPU's has 48


def doctor_says(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from hrm_host.doctor.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


FAKES = Path(__file__).parents[1] / "support" / "fakes"
SEGMENTS = ["sudoku in fp32", "sudoku in fp16", "sudoku in int8", "segments ahead of the host"]
FIRST = ["TensorRT", "CUDA", "memory that both sides see, and a CUDA graph"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "failed", "told"),
    [
        ({}, [], ""),
        ({"FAKE_CUDA_FAILS": "init"}, [*FIRST[1:], *SEGMENTS], "CUDA does not start here"),
        ({"FAKE_CUDA_FAILS": "crash"}, FIRST[2:], "the process ended here with status 3"),
    ],
)
def test_a_device_is_tried_step_by_step_and_a_failure_is_json_too(
    tmp_path: Path, settings: dict[str, str], failed: list[str], told: str
) -> None:
    path = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    done = doctor_says("--device", PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path), **settings)
    steps = json.loads(done.stdout)
    assert [step["step"] for step in steps if step["level"] != "ok"] == failed, done.stderr
    assert done.returncode == bool(failed)
    if failed:
        assert told in next(step["found"] for step in steps if step["level"] != "ok")
    else:
        assert [step["step"] for step in steps] == [*FIRST, *SEGMENTS]
        assert steps[2]["found"]["launch_and_wait_us"] > 0
        assert steps[-2]["found"]["step_ms"]["1"] > 0
        assert sorted(steps[-1]["found"]["ms_a_segment"]) == ["1", "2", "4", "8"]


@pytest.mark.process
def test_one_command_shows_serving_and_training_and_its_status_tells_of_failures() -> None:
    done = doctor_says("--json")
    found = json.loads(done.stdout)
    assert done.returncode == any(finding["level"] == "fail" for finding in found)
    assert {("serve", "ONNX Runtime"), ("serve", "engine cache")} <= {(one["part"], one["name"]) for one in found}
    assert {one["part"] for one in found} >= {"serve", "train"}
    assert all(finding["remedy"] for finding in found if finding["level"] != "ok")


@pytest.mark.process
def test_the_serving_part_needs_no_server_and_no_torch() -> None:
    program = "import sys; from hrm_host.doctor import cli; "
    program += "print({'torch', 'fastapi', 'prometheus_client', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
