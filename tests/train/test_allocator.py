"""Freed memory stays with the process until it is given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from hrm_train import allocator
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(20, 1_000_000).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
usual = faults(), faults()
allocator.keep_freed_memory()
kept = faults(), faults()
print(usual[1], kept[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told anything")
def test_tensors_of_every_step_use_the_same_memory() -> None:
    """Page faults of five tensors of 80 MB, one after the other, the first five not counted."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    usual, kept = map(int, said.stdout.split())
    assert kept < usual / 10
