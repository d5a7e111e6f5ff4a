"""Freed memory stays with the process until it is given back."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

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
print(usual, faults(80))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the switches")
def test_tensors_of_every_step_use_the_same_memory() -> None:
    """Page faults of each of some tensors of 80 MB, in a row; a few may find no room while the heap grows."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    usual, kept = map(float, said.stdout.split())
    assert kept < usual / 10
