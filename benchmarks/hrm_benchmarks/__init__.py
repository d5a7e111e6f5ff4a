"""Benchmarks: what halting-aware batching is worth, measured beside honest baselines."""
