"""From a model to a bundle on disk: written beside its name, compared with PyTorch through the real engine, then named.

Whatever fails or dies on the way leaves nothing under the bundle's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import GOLDEN_NAME, PUZZLE_TABLE_NAME, Bundle, Golden, write_manifest
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.parity import LOGIT_TOLERANCE, ParityReport, compare
from hrm_export import golden as golden_traces
from hrm_model.hrm import HRM
from hrm_puzzles.atomic import new_directory
from hrm_puzzles.puzzle import Puzzle

GRAPH_NAME = "step.fp32.onnx"


class ParityError(ValueError):
    """A graph that does not say what PyTorch says."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """All that goes into a bundle; `meta` is the checkpoint's, `identifiers` name the rows of the puzzle table.

    `num_candidates` puzzles were tried for the golden traces; those left out amplify rounding.
    """

    name: str
    model: HRM
    graph: onnx.ModelProto
    puzzle: Puzzle
    policy: HaltingPolicy
    golden: Golden
    num_candidates: int
    identifiers: Sequence[str]
    meta: Mapping[str, Any]


def write_bundle(path: Path, contents: Contents) -> ParityReport:
    """Writes the bundle whole or not at all.

    Refuses a path that is taken (FileExistsError), and a graph that differs from PyTorch on the golden traces in an
    answer, in a halt or by more than LOGIT_TOLERANCE in a logit or a margin after any segment (ParityError).
    """
    with new_directory(path) as unfinished:
        graph_path = unfinished / GRAPH_NAME
        graph_path.write_bytes(contents.graph.SerializeToString(deterministic=True))
        np.save(unfinished / PUZZLE_TABLE_NAME, contents.model.puzzle_table.float().numpy())
        (unfinished / "identifiers.json").write_text(json.dumps(list(contents.identifiers)) + "\n")
        golden_traces.save(contents.golden, unfinished / GOLDEN_NAME)
        report = _compared(graph_path, contents)
        summary = {"max_logit_gap": report.max_logit_gap, "num_candidates": contents.num_candidates}
        measured = {"fp32": {**report.as_json(), **summary, "tolerance": LOGIT_TOLERANCE}}
        (unfinished / "parity.json").write_text(json.dumps(measured, indent=2) + "\n")
        write_manifest(unfinished, **_manifest_fields(contents))
        Bundle.open(unfinished)
    return report


def _compared(graph_path: Path, contents: Contents) -> ParityReport:
    golden = contents.golden
    engine = OnnxEngine(graph_path, num_slots=len(golden.tokens_BT), want_logits=True)
    table = contents.model.puzzle_table.float().numpy()
    try:
        report = compare(golden, engine, puzzle_table=table, puzzle=contents.puzzle, policy=contents.policy)
    finally:
        engine.close()
    if not report.passes():
        raise ParityError(
            f"the graph differs from PyTorch over {report.num_puzzles} puzzles (largest gap of logits "
            f"{report.max_logit_gap:.1e} and of halting values {report.max_halting_gap:.1e} where {LOGIT_TOLERANCE} is "
            f"allowed, {report.num_different_answers} other answers, {report.num_different_halts} other halts), so "
            "nothing was written; report the checkpoint's config.json as a fault"
        )
    return report


def _manifest_fields(contents: Contents) -> dict[str, Any]:
    config = contents.model.config
    return {
        "name": contents.name,
        "puzzle": contents.puzzle.name,
        "seq_len": config.seq_len,
        "vocab_size": config.vocab_size,
        "num_positions": config.num_positions,
        "hidden_size": config.hidden_size,
        "puzzle_vector_size": config.puzzle_vector_size,
        "num_puzzle_ids": config.num_puzzle_ids,
        "max_segments": contents.policy.max_segments,
        "halting": {"policy": contents.policy.kind, "threshold": contents.policy.threshold},
        "precisions": {"fp32": GRAPH_NAME},
        "provenance": provenance(contents),
    }


def provenance(contents: Contents) -> dict[str, str | int | float]:
    """Where the weights come from, and with what they were exported; no path and no time of this machine."""
    meta = {key: value for key, value in contents.meta.items() if _is_plain(value)}
    versions = {"torch": torch.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        **meta,
        "num_parameters": num_parameters(contents.model),
        **{f"exported_with_{name}": str(version) for name, version in versions.items()},
    }


def num_parameters(model: HRM) -> int:
    """Weights that the graph holds; the puzzle table is counted by its rows instead."""
    return sum(tensor.numel() for name, tensor in model.state_dict().items() if name != "puzzle_table")


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)
