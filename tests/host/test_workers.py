"""Worker processes end with their parent, and freed memory is kept or given back."""

import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
from cli_tools import ran
from service_tools import is_gone, wait_for

from hrm_host.memory import MIB
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


def test_no_worker_outlives_a_killed_parent(tmp_path: Path):
    """The parent says who its workers are, and is killed while they have nothing to do."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script)]
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=silent, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert workers
    wait_for(lambda: all(map(is_gone, workers)))


def test_jobs_are_done_without_semaphores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BaseContext, "Lock", partial(os.stat, "/absent"))  # an OSError
    assert list(results_of(abs, [-1, -2], num_workers=2)) == [1, 2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_workers_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "types.py").write_text("raise SystemExit('not the library')")
    hrm = Path(sys.executable).with_name("hrm")
    sizes = "--train 200 --test 80 --workers 2 --out data"
    monkeypatch.delenv("PYTHONSAFEPATH")
    subprocess.run([hrm, "data", "build", "sudoku-4x4", *sizes.split()], cwd=tmp_path, check=True)


PROGRAM = """
import resource, torch
from hrm_host import memory
def faults(tensors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.ones(20, 1_000_000).sum()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / tensors
usual = faults(5)
memory.keep_freed_memory()
faults(5)
print(usual, faults(40))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the switches")
def test_tensors_of_every_step_use_the_same_memory():
    """Page faults of tensors of 80 MB; a few find no room while the heap grows."""
    usual, kept = map(float, ran(sys.executable, "-c", PROGRAM).stdout.split())
    assert kept < usual / 2


BURST = """
from hrm_host import memory
small = []
large = [bytearray(60_000) for _ in range(2000)]
for number in range(2000):
    small.append(bytes(1000))
    large[number] = bytearray(60_000)
del large
print(memory.freed_bytes(), memory.resident_bytes())
memory.give_back_freed_memory()
print(memory.freed_bytes(), memory.resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc counts what it keeps")
def test_what_a_burst_frees_is_counted_and_given_back():
    before, after = ran(sys.executable, "-c", BURST).stdout.splitlines()
    freed_bytes, held_bytes = map(int, before.split())
    _, left_bytes = map(int, after.split())
    assert freed_bytes > 32 * MIB
    assert left_bytes < held_bytes - 32 * MIB
