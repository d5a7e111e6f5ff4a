"""Worker processes: their results, and that none outlives a parent that was killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hrm_host.workers import results_of

pytestmark = pytest.mark.process
PARENT = """
import os
import time
from hrm_host.workers import results_of

def who(job):
    time.sleep(0.2)  # so that both workers take one
    return os.getpid()

if __name__ == "__main__":
    workers = []
    for worker in results_of(who, range(6), num_workers=2):
        workers.append(worker)
        if len(workers) == 4:
            print(*set(workers), flush=True)
            time.sleep(600)
"""


def test_results_are_the_same_with_and_without_workers() -> None:
    for num_workers in (1, 2):
        found = results_of(abs, [-3, 1, -2], num_workers=num_workers)
        assert sorted(found) == [1, 2, 3]


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """The parent says who its workers are, and is killed while they have nothing to do."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script)]
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=silent, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert workers
    deadline_s = time.monotonic() + 20
    while any(_is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline_s, workers
        time.sleep(0.05)


def _is_alive(process_id: int) -> bool:
    """A process that has ended may stay as a zombie where nobody collects orphans."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
