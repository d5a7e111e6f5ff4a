"""Benchmarks: what halting-aware batching is worth, measured beside honest baselines."""

import sys


def main() -> None:
    """Entry point of `hrm-bench`; says what to install where the serving extra is missing."""
    try:
        from hrm_benchmarks.cli import app
    except ModuleNotFoundError as error:
        sys.stderr.write(f"hrm-bench: {error.name} is not installed: run pip install 'hrm-edge[serve,bench]'.\n")
        sys.exit(3)
    app()
