"""A server within the limits of a container: its threads and slots follow from them."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_server import QUESTION
from service_tools import Server, command, running, wait_for

from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_edge_runtime.worker.lanes import MIN_THREADS
from hrm_host.machine import cpu_seconds

pytestmark = pytest.mark.process
GROUPS = Path("/sys/fs/cgroup")
SUDOKU = ".2..6.51.3..3.2.5.65.24.16.5...3.4.6"


@contextlib.contextmanager
def group(controller: str, **limits: int) -> Iterator[Path]:
    folder = GROUPS / controller / f"hrm-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip(f"no group of {controller} (v1) can be made here")
    try:
        for name, limit in limits.items():
            (folder / f"{controller}.{name}").write_text(str(limit))
        yield folder
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
    finally:
        folder.rmdir()


@contextlib.contextmanager
def serving_in(folder: Path, *arguments: object) -> Iterator[Server]:
    program = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    with Server(["sh", "-c", program, str(folder), *command("serve", *arguments)]) as server:
        yield server
        server.process.terminate()
        server.exit_status()


@pytest.mark.slow
def test_eleven_models_of_32_threads_are_ready_under_a_limit_of_256():
    assert len(shipped_bundles()) == 11
    with group("pids", max=256) as folder, serving_in(folder, "--threads=32") as server:
        server.wait_until_ready()
        models = server.models()
        assert {model["state"] for model in models} == {"ready"}
        assert int((folder / "pids.current").read_text()) < 256
        assert "threads, because the container limits them" in server.log


def test_a_limit_of_threads_that_is_too_low_is_one_sentence():
    limits = {"max": MIN_THREADS - 10}
    with group("pids", **limits) as folder, serving_in(folder, "sudoku-6x6") as server:
        assert server.exit_status() != 0
        wait_for(lambda: "pids.max" in server.log)
        assert server.log.count("\n") == 1
        assert f"it needs {MIN_THREADS}: raise" in server.log


@pytest.mark.slow
def test_under_half_a_cpu_a_puzzle_costs_what_it_costs_with_one_thread():
    costs_s = []
    for options in ([], ["--threads=1"]):
        with (
            group("cpu", cfs_period_us=100_000, cfs_quota_us=50_000) as folder,
            serving_in(folder, "sudoku-6x6", "--slots=1", *options) as server,
        ):
            server.wait_until_ready()
            costs_s.append(cpu_of_a_puzzle(server))
    assert costs_s[0] <= 1.2 * costs_s[1]


def cpu_of_a_puzzle(server: Server, num_puzzles: int = 100) -> float:
    """CPU seconds of the server and its engine for each puzzle."""
    pids = [server.process.pid, server.engine["pid"]]
    before_s = sum(map(cpu_seconds, pids))
    for _ in range(num_puzzles):
        assert server.solve(SUDOKU, policy="fixed").status_code == 200
        time.sleep(0.005)
    return (sum(map(cpu_seconds, pids)) - before_s) / num_puzzles


def test_an_engine_killed_for_its_memory_takes_nobody_along():
    with group("memory") as folder, running(step_s=0.02, segments=4) as server:
        pid = server.engine["pid"]
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "memory.limit_in_bytes").write_text("4096")
        statuses = []
        while server.engine["losses"] == 0 and len(statuses) < 500:
            statuses.append(server.solve(QUESTION).status_code)
        assert set(statuses) <= {200, 503}
        server.wait_until_ready()
        assert server.solve(QUESTION).status_code == 200
        assert server.engine["pid"] != pid
