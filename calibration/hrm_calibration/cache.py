"""A finished calibration on disk, and the refusal of one that belongs to something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from pydantic import ValidationError

from hrm_calibration.int8_report import Int8Report
from hrm_host import atomic
from hrm_puzzles.data.held_out import Questions


class StaleCacheError(ValueError):
    """A cache that does not belong to this graph, these puzzles and these settings."""


def key_of(
    graph: onnx.ModelProto, puzzle_table: NDArray[np.float32], questions: Questions, settings: Mapping[str, Any]
) -> str:
    """sha256 of the graph's bytes, the puzzle table, the puzzles and everything that decides the outcome."""
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True))
    for row in puzzle_table:  # row by row: the table may be a mapped file larger than memory
        digest.update(np.ascontiguousarray(row, np.float32).tobytes())
    digest.update(questions.fingerprint().encode())
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()


def read(path: Path, key: str) -> Int8Report | None:
    """The calibration kept at `path`, None where there is none yet; refuses one with another key or that is damaged."""
    if not path.exists():
        return None
    try:
        report = Int8Report.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise StaleCacheError(f"{path} is no calibration of this version; remove it or name another file.") from error
    if report.key != key:
        raise StaleCacheError(
            f"{path} was made for another graph, other puzzles or other settings (key {report.key[:12]}, wanted "
            f"{key[:12]}); remove it or name another file."
        )
    return report


def write(path: Path, report: Int8Report) -> None:
    atomic.write_text(path, report.model_dump_json(indent=1) + "\n")
