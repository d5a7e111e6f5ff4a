"""Where the weights of a bundle come from, and with what they were exported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
import torch

from hrm_model.hrm import HRM


def provenance(model: HRM, meta: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The plain values of the checkpoint's `meta`, and versions; no path and no time of this machine."""
    versions = {"torch": torch.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        **{key: value for key, value in meta.items() if _is_plain(value)},
        "num_parameters": num_parameters(model),
        **{f"exported_with_{name}": str(version) for name, version in versions.items()},
    }


def num_parameters(model: HRM) -> int:
    """Weights that the graph holds; the puzzle table is counted by its rows instead."""
    return sum(tensor.numel() for name, tensor in model.state_dict().items() if name != "puzzle_table")


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)
