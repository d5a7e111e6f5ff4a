"""Heat, throttling and power modes, over trees of files that a Jetson's documents describe."""

from pathlib import Path

import pytest
from board_tree import board

from hrm_host import board as host_board
from hrm_host.board import Host


def test_zones_and_throttling_are_read(tmp_path: Path) -> None:
    sensors = board(tmp_path)
    assert sensors.temperature_c() == {"cpu-thermal": 51.25, "gpu-thermal": 52.5}
    assert sensors.throttle_events() == {"oc1": 0, "oc3": 0}


def test_a_zone_that_does_not_read_is_left_out(tmp_path: Path) -> None:
    machine = board(tmp_path)
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("\n")
    sensors = machine
    assert sensors.hottest_c() == 52.5
    assert sensors.temperature_c() == {"gpu-thermal": 52.5}


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


@pytest.mark.parametrize(("names", "folder"), [(True, "named"), (False, "shared"), (None, "home")])
def test_commands_and_the_service_share_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: bool | None, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    shared = tmp_path / "shared"
    monkeypatch.setattr(host_board, "SHARED_CACHE", shared)
    if names is not None:
        shared.mkdir()
    if names:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    found = host_board.cache_folder().relative_to(tmp_path)
    assert found.parts[0] == folder
