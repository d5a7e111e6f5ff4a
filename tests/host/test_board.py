"""Power, energy, heat, throttling and power modes, over files as a Jetson's documents say."""

from pathlib import Path

import pytest
from board_tree import RAILS, board

from hrm_host.board import Energy, Host


def test_rails_zones_and_throttling_are_read(tmp_path: Path) -> None:
    sensors = board(tmp_path)
    assert sensors.power_w() == {"VDD_IN": 5.072, "VDD_CPU_GPU_CV": 1.266}
    assert sensors.temperature_c() == {"cpu-thermal": 51.25, "gpu-thermal": 52.5}
    assert sensors.throttle_events() == {"oc1": 0, "oc3": 0}


def test_a_zone_or_rail_that_does_not_read_is_left_out(tmp_path: Path) -> None:
    sensors = board(tmp_path)
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("\n")
    (tmp_path / RAILS / "curr2_input").unlink()
    assert sensors.hottest_c() == 52.5
    assert sensors.temperature_c() == {"gpu-thermal": 52.5}
    assert set(sensors.power_w()) == {"VDD_IN"}


def test_a_machine_without_sensors_has_no_readings(tmp_path: Path) -> None:
    sensors = Host(root=tmp_path)
    assert sensors.power_w() == {}
    assert sensors.temperature_c() == {}
    assert Energy(machine=sensors).read_j() == {}


def test_energy_is_power_summed_over_time_and_never_falls(tmp_path: Path) -> None:
    now_s = 0.0
    energy = Energy(machine=board(tmp_path), clock=lambda: now_s)
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
    energy = Energy(machine=Host(root=tmp_path))
    seen: list[float] = []
    for microjoules in (7_000_000, 9_000_000, 1_000_000, 1_500_000):
        (zone / "energy_uj").write_text(str(microjoules))
        seen.append(energy.read_j()["package-0"])
    assert seen == [0.0, 2.0, 2.0, 2.5]


def test_a_report_tells_what_decides_the_speed_of_a_board(tmp_path: Path) -> None:
    facts = board(tmp_path).facts()
    assert facts["power_mode"] == "MAXN_SUPER"
    assert (facts["gpu_cur_mhz"], facts["gpu_max_mhz"]) == ("306", "1020")
    assert facts["release"].startswith("# R36")


@pytest.mark.process
def test_where_nvpmodel_left_no_file_it_is_asked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvpmodel"
    nowhere = Host(root=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nowhere.power_mode() == "none"
    tool.write_text("#!/bin/sh\necho NV Power Mode: 15W\necho 0\n")
    tool.chmod(0o755)
    assert nowhere.power_mode() == "15W"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert nowhere.power_mode() == "unknown"
