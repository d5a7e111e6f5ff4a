"""What control groups allow, of both versions, along the whole path of groups."""

import os
from pathlib import Path

import pytest
from board_tree import board

from hrm_host import machine, system
from hrm_host.groups import cpu_quota, memory_left_bytes, memory_limit_bytes, threads_left
from hrm_host.machine import Host
from hrm_host.memory import available_bytes, read_memory

MIB = 1 << 20
V1_MOUNTS = """\
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""


def version_2(root: Path, path: str, files: dict[str, object], **more: str) -> Host:
    stated = {f"sys/fs/cgroup/{name}": f"{content}\n" for name, content in files.items()}
    return board(root, {"proc/self/cgroup": f"0::{path}\n", **stated, **more})


def version_1(root: Path, path: str, files: dict[str, object]) -> Host:
    stated = {f"sys/fs/cgroup/{name}": f"{content}\n" for name, content in files.items()}
    lines = f"4:memory:{path}\n3:cpu,cpuacct:{path}\n2:pids:{path}\n1:name=systemd:/\n0::/\n"
    return board(root, {"proc/self/cgroup": lines, "proc/self/mountinfo": V1_MOUNTS, **stated})


def test_without_groups_there_is_no_limit(tmp_path: Path):
    for files in (Host(root=tmp_path / "a"), version_2(tmp_path / "b", "/", {"cpu.max": "max 1"})):
        assert cpu_quota(files.text) is None
        assert memory_limit_bytes(files.text) is None
        assert memory_left_bytes(files.text) is None
        assert threads_left(files.text) is None


@pytest.mark.parametrize("limited", ["", "a/", "a/b/"])
def test_the_limit_of_any_group_on_the_path_holds(tmp_path: Path, limited: str):
    files = version_2(
        tmp_path,
        "/a/b",
        {
            "a/cpu.max": "800000 100000",
            f"{limited}cpu.max": "50000 100000",
            "a/b/memory.max": "max",
            f"{limited}memory.max": 100 * MIB,
            f"{limited}memory.current": 80 * MIB,
            f"{limited}memory.stat": f"anon 5\ninactive_file {30 * MIB}",
            "a/pids.max": "max",
            f"{limited}pids.max": 256,
            f"{limited}pids.current": 56,
        },
    )
    assert cpu_quota(files.text) == 0.5
    assert memory_limit_bytes(files.text) == 100 * MIB
    assert memory_left_bytes(files.text) == 50 * MIB
    assert threads_left(files.text) == 200


@pytest.mark.parametrize("limited", ["", "docker/", "docker/x/"])
def test_the_same_for_version_1(tmp_path: Path, limited: str):
    cpu = f"cpu,cpuacct/{limited}"
    files = version_1(
        tmp_path,
        "/docker/x",
        {
            "cpu,cpuacct/docker/cpu.cfs_quota_us": -1,
            "cpu,cpuacct/docker/cpu.cfs_period_us": 100000,
            f"{cpu}cpu.cfs_quota_us": 150000,
            f"{cpu}cpu.cfs_period_us": 100000,
            "memory/docker/x/memory.limit_in_bytes": 9223372036854771712,
            f"memory/{limited}memory.limit_in_bytes": 100 * MIB,
            f"memory/{limited}memory.usage_in_bytes": 80 * MIB,
            f"memory/{limited}memory.stat": f"total_inactive_file {10 * MIB}",
            f"pids/{limited}pids.max": 64,
            f"pids/{limited}pids.current": 60,
        },
    )
    assert cpu_quota(files.text) == 1.5
    assert memory_left_bytes(files.text) == 30 * MIB
    assert threads_left(files.text) == 4


def test_a_container_sees_its_own_group_as_the_root_of_the_mount(tmp_path: Path):
    mounted = "35 31 0:32 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw"
    more = {"proc/self/mountinfo": mounted}
    files = version_2(tmp_path, "/docker/x", {"cpu.max": "200000 100000"}, **more)
    assert cpu_quota(files.text) == 2.0


@pytest.mark.parametrize(
    ("quota", "cores"), [(0.1, 1), (0.5, 1), (1.0, 1), (1.5, 2), (2.4, 2), (64.0, 16)]
)
def test_threads_follow_from_cpus_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    files = version_2(tmp_path, "/", {"cpu.max": f"{int(quota * 100000)} 100000"})
    assert machine.num_cores(files) == cores


def test_what_a_sandbox_hides_or_forbids_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.sched_getaffinity", forbidden)
    assert machine.num_cores(Host(root=tmp_path)) == os.cpu_count()
    assert read_memory(board(tmp_path / "empty", {"proc/meminfo": ""})) is None
    old = board(tmp_path / "old", {"proc/meminfo": "MemTotal: 8192 kB\nMemFree: 4096 kB"})
    assert available_bytes(old) == 4 * MIB


def test_a_process_starts_from_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with system.signals_blocked():
        assert Path.cwd() == Path("/")
    monkeypatch.chdir(tmp_path)


def test_memory_of_the_groups_bounds_that_of_the_machine(tmp_path: Path):
    meminfo = {"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB"}
    limits = {"a/memory.max": 500 * MIB, "a/memory.current": 100 * MIB}
    files = version_2(tmp_path, "/a/b", limits, **meminfo)
    assert available_bytes(files) == 400 * MIB
