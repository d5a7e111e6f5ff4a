"""Sensors and the doctor's serving part, over trees of files that a Jetson's documents describe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from board_tree import ORIN, RAILS, board

from hrm_edge_runtime.doctor import jetson, memory
from hrm_edge_runtime.doctor.cli import serving
from hrm_edge_runtime.doctor.software import Software
from hrm_host.board import Board, power_mode
from hrm_host.finding import Finding
from hrm_host.machine_files import Files
from hrm_host.sensors import Energy, Sensors

JETPACK_62 = Software(python=(3, 10, 12), onnxruntime=None, providers=(), tensorrt="10.3.0", pycuda="2024.1.2")
PC = Software(python=(3, 12, 1), onnxruntime="1.23.0", providers=("CPUExecutionProvider",), tensorrt=None, pycuda=None)


def unwell(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}


# --- sensors


def test_rails_zones_and_throttling_are_read(tmp_path: Path) -> None:
    sensors = Sensors(files=board(tmp_path))
    assert sensors.power_w() == {"VDD_IN": 5.072, "VDD_CPU_GPU_CV": 1.266}
    assert sensors.temperature_c() == {"cpu-thermal": 51.25, "gpu-thermal": 52.5}
    assert sensors.throttle_events() == {"oc1": 0, "oc3": 0}


def test_a_zone_or_rail_that_does_not_read_is_left_out(tmp_path: Path) -> None:
    files = board(tmp_path)
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("\n")
    (tmp_path / RAILS / "curr2_input").unlink()
    sensors = Sensors(files=files)
    assert sensors.hottest_c() == 52.5
    assert sensors.temperature_c() == {"gpu-thermal": 52.5}
    assert set(sensors.power_w()) == {"VDD_IN"}


def test_a_machine_without_sensors_has_no_readings(tmp_path: Path) -> None:
    sensors = Sensors(files=Files(root=tmp_path))
    assert (sensors.power_w(), sensors.temperature_c(), Energy(sensors=sensors).read_j()) == ({}, {}, {})


def test_energy_is_power_summed_over_time_and_never_falls(tmp_path: Path) -> None:
    now_s = 0.0
    energy = Energy(sensors=Sensors(files=board(tmp_path)), clock=lambda: now_s)
    assert energy.read_j()["VDD_IN"] == 0.0
    (tmp_path / RAILS / "curr1_input").write_text("3000")
    now_s = 10.0
    assert energy.read_j()["VDD_IN"] == pytest.approx(10 * (5.072 + 15.216) / 2)
    now_s = 11.0
    assert energy.read_j()["VDD_IN"] == pytest.approx(101.44 + 15.216)


def test_a_counter_of_energy_that_wraps_does_not_fall(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0")
    energy = Energy(sensors=Sensors(files=Files(root=tmp_path)))
    seen: list[float] = []
    for microjoules in (7_000_000, 9_000_000, 1_000_000, 1_500_000):
        (zone / "energy_uj").write_text(str(microjoules))
        seen.append(energy.read_j()["package-0"])
    assert seen == [0.0, 2.0, 2.0, 2.5]


# --- how it is set


def test_a_report_tells_what_decides_the_speed_of_a_board(tmp_path: Path) -> None:
    facts = Board(files=board(tmp_path)).facts()
    assert facts["power_mode"] == "MAXN_SUPER"
    assert (facts["gpu_cur_mhz"], facts["gpu_max_mhz"]) == ("306", "1020")
    assert facts["release"].startswith("# R36")


def test_where_nvpmodel_left_no_file_it_is_asked_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvpmodel"
    nowhere = Board(files=Files(root=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert power_mode(nowhere) == "none"
    tool.write_text("#!/bin/sh\necho NV Power Mode: 15W\necho 0\n")
    tool.chmod(0o755)
    assert power_mode(nowhere) == "15W"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert power_mode(nowhere) == "unknown"


# --- the doctor


def test_a_healthy_board_needs_nothing(tmp_path: Path) -> None:
    found = serving(board(tmp_path), JETPACK_62, tmp_path)
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
    found = serving(board(tmp_path, ORIN, **changes), JETPACK_62, tmp_path)
    assert unwell(found) == {name: level}
    assert remedy in next(finding.remedy for finding in found if finding.name == name)


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"tensorrt": None}, "TensorRT", "python3-libnvinfer"),
        ({"tensorrt": "8.6.2"}, "TensorRT", "JetPack 6.2"),
        ({"pycuda": None}, "PyCUDA", "hrm-edge[jetson]"),
        ({"python": (3, 8, 10)}, "Python", "3.10"),
    ],
)
def test_software_that_a_board_lacks_is_a_fault(
    tmp_path: Path, changes: dict[str, object], name: str, remedy: str
) -> None:
    found = serving(board(tmp_path), replace(JETPACK_62, **changes), tmp_path)  # type: ignore[arg-type]
    assert {finding.name: remedy in finding.remedy for finding in found if finding.level == "fail"} == {name: True}


def test_a_pc_is_not_asked_for_what_only_a_board_has(tmp_path: Path) -> None:
    found = serving(Files(root=tmp_path), PC, tmp_path)
    assert unwell(found) == {}
    assert not {"board", "JetPack", "power mode", "CUDA"} & {finding.name for finding in found}
    missing = serving(Files(root=tmp_path), replace(PC, onnxruntime=None), tmp_path)
    assert unwell(missing) == {"ONNX Runtime": "fail"}


def test_a_full_disk_has_no_room_for_engines(tmp_path: Path) -> None:
    assert memory.engine_cache(tmp_path, free=100 << 20).level == "fail"


def test_the_zone_nearest_to_its_own_limit_is_told(tmp_path: Path) -> None:
    (finding,) = jetson.heat(board(tmp_path))
    assert finding.text == "gpu-thermal 52 °C, slowed down from 85 °C"  # 33 degrees left; the CPU's has 48


def test_one_command_shows_serving_and_training_and_its_status_tells_of_failures() -> None:
    command = [sys.executable, "-c", "from hrm_edge_runtime.doctor.cli import main; main()", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == any(finding["level"] == "fail" for finding in found)
    assert {("serve", "ONNX Runtime"), ("serve", "engine cache")} <= {(one["part"], one["name"]) for one in found}
    assert {one["part"] for one in found} >= {"serve", "train"}
    assert all(finding["remedy"] for finding in found if finding["level"] != "ok")


def test_the_serving_part_needs_no_server_and_no_torch() -> None:
    program = "import sys; from hrm_edge_runtime.doctor import cli; "
    program += "print({'torch', 'fastapi', 'prometheus_client', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
