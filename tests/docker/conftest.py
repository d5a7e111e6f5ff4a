"""Tests of what stands in docker/, with the tools of the server's tests; importlib mode leaves the path to us."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
