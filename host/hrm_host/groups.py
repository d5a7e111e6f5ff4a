"""What the control groups of this process let it use: CPUs, memory and threads.

A limit of any group on the path from the process's own group to the root holds. Version 2 has one
path for all controllers. Version 1 has one for each, and both versions may be mounted at once.
Formats: the kernel's documents cgroup-v2, cgroup-v1 and proc_pid_mountinfo.
"""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

Read = Callable[[str], str | None]
"""The text of a file below the root of the machine, as `Host.text`; None if it is missing."""

MOUNT = "/sys/fs/cgroup"
NO_LIMIT = 1 << 62  # bytes; version 1 writes a number near 2**63 for no limit


class Group(NamedTuple):
    """A control group: the folder of its files, relative to the root, and its version."""

    folder: str
    version: int


def cpu_quota(read: Read) -> float | None:
    """The CPUs that the groups allow, such as 0.5; None without a quota."""
    quotas: list[float] = []
    for group in _groups(read, "cpu"):
        if group.version == 2:
            fields = (read(f"{group.folder}/cpu.max") or "").split()
        else:
            quota = read(f"{group.folder}/cpu.cfs_quota_us") or ""
            period = read(f"{group.folder}/cpu.cfs_period_us") or ""
            fields = [quota, period]
        numbers = [int(field) for field in fields if field.isdecimal()]
        if len(numbers) == 2 and numbers[1] > 0:  # "max" and -1 are no numbers
            quotas.append(numbers[0] / numbers[1])
    return min(quotas, default=None)


def memory_limit_bytes(read: Read) -> int | None:
    """The memory that the groups allow in all; None without a limit."""
    limits = [limit for _, limit in _memory_limits(read)]
    return min(limits, default=None)


def memory_left_bytes(read: Read) -> int | None:
    """The memory that the groups still allow; caches count as free. None without a limit."""
    left: list[int] = []
    for group, limit in _memory_limits(read):
        name, cached = "memory.current", "inactive_file"
        if group.version == 1:
            name, cached = "memory.usage_in_bytes", "total_inactive_file"
        used = _number(read, f"{group.folder}/{name}") or 0
        statistics = read(f"{group.folder}/memory.stat") or ""
        fields = dict(line.split() for line in statistics.splitlines())
        left.append(limit - used + int(fields.get(cached, 0)))
    return min(left, default=None)


def threads_left(read: Read) -> int | None:
    """The threads that the groups let this process start; None without a limit."""
    left: list[int] = []
    for group in _groups(read, "pids"):
        limit = _number(read, f"{group.folder}/pids.max")
        if limit is not None:
            num_running = _number(read, f"{group.folder}/pids.current") or 0
            left.append(max(0, limit - num_running))
    return min(left, default=None)


def _memory_limits(read: Read) -> Iterator[tuple[Group, int]]:
    for group in _groups(read, "memory"):
        name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        limit = _number(read, f"{group.folder}/{name}")
        if limit is not None and limit < NO_LIMIT:
            yield group, limit


def _number(read: Read, path: str) -> int | None:
    """The number in a file; None if it is missing or says "max"."""
    text = read(path) or ""
    return int(text) if text.isdecimal() else None


def _groups(read: Read, controller: str) -> Iterator[Group]:
    """The groups of a controller that hold this process, from its own to the root."""
    for line in (read("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _path_of_groups(read, controller, path, version=2)
        elif controller in controllers.split(","):
            yield from _path_of_groups(read, controller, path, version=1)


def _path_of_groups(read: Read, controller: str, path: str, *, version: int) -> Iterator[Group]:
    root, mount = _mounted(read, controller, version)
    inside = PurePosixPath(path)
    if inside.is_relative_to(root):
        inside = PurePosixPath("/") / inside.relative_to(root)
    while True:
        yield Group(folder=f"{mount}{inside}".strip("/"), version=version)
        if inside == inside.parent:
            return
        inside = inside.parent


def _mounted(read: Read, controller: str, version: int) -> tuple[str, str]:
    """The group that is mounted as the root of a hierarchy, and where."""
    for line in (read("proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        kind, *details = after.split()
        is_version_2 = version == 2 and kind == "cgroup2"
        is_version_1 = version == 1 and kind == "cgroup" and controller in details[-1].split(",")
        if is_version_2 or is_version_1:
            return fields[3], fields[4]
    if version == 2:
        return "/", MOUNT
    return "/", f"{MOUNT}/{controller}"
