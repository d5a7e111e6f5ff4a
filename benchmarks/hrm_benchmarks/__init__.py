"""Benchmarks: what halting-aware batching is worth, measured beside honest baselines."""

from hrm_host import umbrella


def main() -> None:
    """Entry point of `hrm-bench`; says what to install where its extra is missing."""
    umbrella.run("bench")
