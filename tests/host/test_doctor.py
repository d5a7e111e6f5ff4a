"""The doctor and the sensors of boards made of files: each fault has its remedy."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from board_tree import ORIN, board, unwell
from cli_tools import invoked, ran
from stand_ins import PYTHON_PATH

from hrm_host import machine as host_machine
from hrm_host.doctor import serving
from hrm_host.doctor.cli import main as app
from hrm_host.doctor.serving import ServingSoftware
from hrm_host.machine import Host

JETPACK_62 = ServingSoftware(
    onnxruntime=None,
    providers=(),
    tensorrt="10.3.0",
    cuda_driver="12.9.5",
    num_gpus=1,
    tensorrt_file="/usr/lib/python3.10/dist-packages/tensorrt/__init__.py",
)
PC = ServingSoftware(
    onnxruntime="1.23.0",
    providers=("CPUExecutionProvider",),
    tensorrt=None,
    cuda_driver=None,
)


def release(number: int, revision: str) -> str:
    return f"# R{number} (release), REVISION: {revision}, GCID: 1"


ONE_MODE = "< POWER_MODEL ID=0 NAME=15W >\n"  # as on a board that an image updated to JetPack 7.2


def available(kib: int) -> str:
    return f"MemTotal: 7802764 kB\nMemAvailable: {kib} kB\n"


def test_a_healthy_board_needs_nothing(tmp_path: Path):
    found = serving.findings_of(board(tmp_path), JETPACK_62)
    assert unwell(found) == {}
    said = {finding.name: finding.text for finding in found}
    assert said["board"].startswith("NVIDIA Jetson Orin Nano")
    assert said["JetPack"] == "6.2 (L4T 36.4.3), supported"
    assert said["power mode"] == "MAXN_SUPER"
    assert said["memory"] == "5.8 of 7.4 GiB free, swap 3.7 GiB"


@pytest.mark.parametrize(
    ("changes", "name", "level", "remedy"),
    [
        ({"status": "pmode:0000"}, "power mode", "warn", "sudo nvpmodel -m 2"),
        ({"status": ""}, "power mode", "warn", "sudo nvpmodel -q"),
        ({"max_freq": "624750000"}, "power mode", "warn", "Super configuration"),
        ({"nvpmodel.conf": ONE_MODE, "max_freq": "612000000"}, "power mode", "warn", "flash"),
        ({"nv_tegra_release": release(35, "4.1")}, "JetPack", "fail", "flash JetPack 6.2"),
        ({"nv_tegra_release": "something else"}, "JetPack", "warn", "SDK Manager"),
        ({"meminfo": available(900_000)}, "memory", "warn", "stop the desktop"),
        ({"meminfo": available(90_000)}, "memory", "fail", "stop the desktop"),
    ],
)
def test_each_fault_of_a_board_has_its_remedy(
    tmp_path: Path, changes: dict[str, str], name: str, level: str, remedy: str
):
    found = serving.findings_of(board(tmp_path, ORIN, **changes), JETPACK_62)
    assert unwell(found) == {name: level}
    (fault,) = [finding for finding in found if finding.name == name]
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"tensorrt": None}, "TensorRT", "python3-libnvinfer"),
        ({"cuda_driver": None}, "CUDA bindings", "hrm-edge[jetson]"),
        ({"onnxruntime_fault": "libgomp.so.1"}, "ONNX Runtime", "onnxruntime-gpu; pip install"),
        ({"num_gpus": 0, "gpu_fault": "cuInit gives driver error 100"}, "GPU", "--runtime nvidia"),
        ({"tensorrt_fault": "libnvdla_compiler.so: absent"}, "TensorRT", "nvidia-l4t-dla-compiler"),
    ],
)
def test_software_that_a_board_lacks_is_a_fault(
    tmp_path: Path, changes: dict[str, object], name: str, remedy: str
):
    installed = JETPACK_62._replace(**changes)
    found = serving.findings_of(board(tmp_path), installed)
    (failed,) = [finding for finding in found if finding.level == "fail"]
    assert failed.name == name
    assert remedy in failed.remedy


FROM_PIP = "/opt/hrm/lib/python3.12/site-packages/tensorrt/__init__.py"
FROM_JETPACK = "/usr/lib/python3.12/dist-packages/tensorrt/__init__.py"


@pytest.mark.parametrize(
    ("line", "version", "file", "remedy"),
    [
        (release(36, "4.3"), "10.3.0", FROM_JETPACK, ""),
        (release(39, "2.1"), "10.16.2.10", FROM_JETPACK, ""),
        (release(38, "4.0"), "10.13.3.9", FROM_JETPACK, ""),
        ("something else", "10.16.2.10", FROM_JETPACK, ""),
        (release(39, "2.1"), "10.16.2.10", FROM_PIP, "pip uninstall tensorrt"),
        ("something else", "10.3.0", FROM_PIP, "pip uninstall tensorrt"),
        (release(39, "2.1"), "10.13.3.9", FROM_JETPACK, "Isaac ROS pins 10.13.3"),
        (release(36, "5.2"), "10.13.3.9", FROM_JETPACK, "Isaac ROS pins 10.13.3"),
    ],
)
def test_a_jetson_needs_the_tensorrt_of_its_jetpack(
    line: str, version: str, file: str, remedy: str
):
    installed = JETPACK_62._replace(tensorrt=version, tensorrt_file=file)
    found = [one for one in serving.engines(installed, line) if one.name == "TensorRT"]
    assert [one.level for one in found] == ["fail" if remedy else "ok"]
    assert remedy in found[0].remedy
    assert ("apt-cache policy python3-libnvinfer" in found[0].remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("model", "line", "support"),
    [
        ("NVIDIA Jetson Orin NX", release(39, "2.1"), "7.2.1 (L4T 39.2.1), supported"),
        ("NVIDIA Jetson AGX Orin", release(36, "4.0"), "6.1 (L4T 36.4.0), should work"),
        ("NVIDIA Jetson AGX Thor", release(38, "4.0"), "7.1 (L4T 38.4.0), should work"),
        ("NVIDIA Jetson Orin Nano", release(36, "3.0"), "6 (L4T 36.3.0), rejected"),
        ("NVIDIA Jetson Orin Nano", release(36, "5.2"), "6.2.3 (L4T 36.5.2), supported"),
        ("NVIDIA Jetson Orin Nano", release(39, "3.0"), "7 (L4T 39.3.0), supported"),
    ],
)
def test_the_support_of_a_board_is_named(model: str, line: str, support: str):
    assert serving.release(line, model).text == support


def test_a_pc_is_not_asked_for_what_only_a_board_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = serving.findings_of(Host(root=tmp_path), PC)
    assert unwell(found) == {}
    assert not {"board", "JetPack", "power mode"} & {finding.name for finding in found}
    missing = serving.findings_of(Host(root=tmp_path), PC._replace(onnxruntime=None))
    assert unwell(missing) == {"ONNX Runtime": "fail"}
    monkeypatch.setattr(serving, "MIN_CACHE_BYTES", 1 << 60)
    assert serving.engine_cache().level == "fail"


@pytest.mark.process
@pytest.mark.parametrize("name", ["tensorrt", "onnxruntime"])
@pytest.mark.parametrize("code", ["raise OSError('libgomp.so.1')", "# pip left its folder"])
def test_a_package_that_is_installed_and_does_not_load_is_found(
    tmp_path: Path, name: str, code: str
):
    (tmp_path / f"{name}.py").write_text(code)
    program = f"from hrm_host.doctor import serving; print(serving.look().{name}_fault)"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = ran(sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": path})
    assert re.match("libgomp|module .* has no attribute", done.stdout), done.stderr


SEGMENTS = ["sudoku in fp32", "sudoku in fp16", "sudoku in int8", "segments ahead of the host"]
FIRST = ["TensorRT", "CUDA", "memory that both sides see, and a CUDA graph"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "failed", "told"),
    [
        ({"FAKE_CUDA_FAILS": "init"}, [*FIRST[1:], *SEGMENTS], "CUDA does not start here"),
        ({"FAKE_CUDA_FAILS": "crash"}, FIRST[2:], "the process ended here with status 3"),
    ],
)
def test_a_device_is_tried_whose_driver_fails(
    tmp_path: Path, settings: dict[str, str], failed: list[str], told: str
):
    folders = {"PYTHONPATH": PYTHON_PATH, "XDG_CACHE_HOME": str(tmp_path)}
    done = invoked(app, "--device", **folders, **settings)
    steps = json.loads(done.stdout)
    unmet = {step["step"]: step["found"] for step in steps if step["level"] != "ok"}
    assert list(unmet) == failed, done.stderr
    assert done.exit_code == 1
    assert told in unmet[failed[0]]


@pytest.mark.process
def test_one_command_shows_serving_and_training_and_its_status_tells_of_failures():
    done = invoked(app, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == any(finding["level"] == "fail" for finding in found)
    names = {(finding["part"], finding["name"]) for finding in found}
    assert {("serve", "ONNX Runtime"), ("serve", "engine cache")} <= names
    assert {part for part, _ in names} >= {"serve", "train"}
    for finding in found:
        assert finding["remedy"] or finding["level"] == "ok"


def test_zones_and_throttling_are_read_and_a_broken_zone_is_left_out(tmp_path: Path):
    sensors = board(tmp_path)
    assert sensors.temperature_c() == {"cpu-thermal": 51.25, "gpu-thermal": 52.5}
    assert sensors.throttle_events() == {"oc1": 0, "oc3": 0}
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("\n")
    assert sensors.temperature_c() == {"gpu-thermal": 52.5}


def test_a_report_tells_what_decides_the_speed_of_a_board(tmp_path: Path):
    facts = board(tmp_path).facts()
    assert facts["power_mode"] == "MAXN_SUPER"
    assert (facts["gpu_cur_mhz"], facts["gpu_max_mhz"]) == ("306", "1020")
    assert facts["release"].startswith("# R36")


@pytest.mark.process
def test_power_mode_comes_from_nvpmodel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    shared = tmp_path / "shared"
    monkeypatch.setattr(host_machine, "SHARED_CACHE", shared)
    if names is not None:
        shared.mkdir()
    if names:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    found = host_machine.cache_folder().relative_to(tmp_path)
    assert found.parts[0] == folder


def test_a_user_without_a_home_gets_a_folder_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in a container that runs with any user id: no HOME, no entry in the list of users."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(host_machine, "SHARED_CACHE", tmp_path / "shared")
    monkeypatch.setattr("os.getuid", lambda: 1234567)
    assert host_machine.cache_folder() == tmp_path / "shared" / "hrm-edge"
