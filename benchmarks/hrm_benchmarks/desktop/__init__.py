"""The benchmarks that need PyTorch; no other part of the package imports it."""
