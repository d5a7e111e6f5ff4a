"""Benchmarks of halting-aware batching, serving and training, beside honest baselines."""
