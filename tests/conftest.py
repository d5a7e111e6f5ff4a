"""One thread for PyTorch, here and in every process that a test starts: at these sizes a second one only waits."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # it is read once, when torch is imported: before any other conftest
