"""Freed memory stays with the process until it is given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from hrm_train import allocator
{first}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(20, 1_000_000).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults_after(first: str) -> int:
    """Page faults of 20 tensors of 80 MB, one after the other, the first ones not counted."""
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told anything")
def test_tensors_of_every_step_use_the_same_memory() -> None:
    usual, kept = faults_after(""), faults_after("allocator.keep_freed_memory()")
    assert kept < usual / 10
