"""ONNX Runtime's telemetry stays off and leaves no identifier behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

OPEN_A_MODEL = """
import {first}
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.factory import engine_for
bundle = Bundle.open(find_bundle("sudoku-6x6"))
engine_for(bundle, engine="cpu", num_slots=1)
"""


@pytest.mark.parametrize("first", ["hrm_edge_runtime", "hrm_calibration", "hrm_export"])
def test_opening_a_model_leaves_nothing_in_the_home_directory(tmp_path: Path, first: str) -> None:
    environment = dict(os.environ)
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    environment.update(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    command = [sys.executable, "-c", OPEN_A_MODEL.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []
    assert "telemetry" not in done.stderr
