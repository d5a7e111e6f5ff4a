"""Helpers stand beside these tests, and importlib mode leaves the path to us."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # the models are so small that a second thread only waits
