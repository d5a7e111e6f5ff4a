"""What goes into a bundle. Content that does not fit is rejected before a long computation
starts."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch

from hrm_calibration.judge import Exam
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.api.errors import without_folders
from hrm_edge_runtime.contract.halting import HaltingPolicy, usual_kind
from hrm_edge_runtime.engines.onnx import CPU, CUDA, Provider
from hrm_export.inputs import data_of, find_puzzles, identifiers_of, open_model, tasks_of
from hrm_export.options import Options
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import torch_device
from hrm_host import atomic, machine, progress
from hrm_host.reading import printable
from hrm_model import checkpoint, hrm
from hrm_model.config import HRMConfig
from hrm_puzzles.arc.examples import num_by_task_in
from hrm_puzzles.puzzle import Puzzle


class Contents(NamedTuple):
    """Everything that goes into a bundle.

    `generated` names the tasks that were also trained on generated examples, `meta` is the
    checkpoint's. The served policy has no threshold yet: each precision chooses its own.
    """

    name: str
    model: hrm.HRM
    exam: Exam
    meta: Mapping[str, Any]
    generated: Sequence[str] = ()

    def provenance(self) -> dict[str, str | int | float]:
        """The plain values of `meta`, and versions. Leaves out paths and times of this machine."""
        known: dict[str, str | int | float] = {}
        for key, value in self.meta.items():
            if isinstance(value, str) or (type(value) in (int, float) and np.isfinite(value)):
                known[key] = value
        known["architecture"] = self.model.config.family
        known["num_parameters"] = self.model.num_parameters
        for module in (torch, onnx, onnxruntime):
            known[f"exported_with_{module.__name__}"] = str(module.__version__)
        return known


def contents_of(
    options: Options,
    source: Path,
    out: Path,
    stages: progress.Stages,
) -> Contents:
    """Load, find or generate everything that goes from the checkpoint `source` into `out`."""
    atomic.require_free(out)
    source = checkpoint.resolve(source)
    model, puzzle, meta = open_model(source, options.board)
    keep_rows(model, options.puzzle_ids, source)
    config = model.config
    policy = policy_of(options, config, puzzle)
    data = options.data
    if options.puzzle_ids is None:
        data = data_of(options.data, source, config, puzzle)
    identifiers = identifiers_of(data, config.num_puzzle_ids)
    provider = provider_of(options.device)
    served = served_graph(model, puzzle, policy, provider)
    calibration, held_out = find_puzzles(options, config, puzzle, data, stages)
    num_traced = min(policy.max_segments, config.max_segments)
    model.config = replace(config, max_segments=num_traced)
    exam = Exam(
        served=served,
        calibration=calibration,
        held_out=held_out,
        tasks=tasks_of(data, puzzle, identifiers),
        identifiers=identifiers,
        lower=options.lower_precisions,
        max_loss=options.max_loss,
    )
    generated: list[str] = []
    if data is not None:
        generated += num_by_task_in(data)
    command = printable(without_folders(shlex.join(["hrm-export", *sys.argv[1:]])))
    return Contents(
        name=options.name or out.stem,
        model=model.to(provider.device or "cpu"),
        exam=exam,
        meta={"checkpoint": source.name, **meta, "puzzle": puzzle.name, "command": command},
        generated=generated,
    )


def keep_rows(model: hrm.HRM, num_rows: int | None, source: Path) -> None:
    """Keep the first rows of the model's puzzle table; None keeps all."""
    if num_rows is None:
        return
    num_found = model.config.num_puzzle_ids
    if num_rows > num_found:
        problem = f"--puzzle-ids {num_rows} but the table of {source} has {num_found} rows"
        raise ValueError(f"{problem}; give at most {num_found}")
    model.puzzle_table = model.puzzle_table[:num_rows].clone()
    model.config = replace(model.config, num_puzzle_ids=num_rows)


def policy_of(options: Options, config: HRMConfig, puzzle: Puzzle) -> HaltingPolicy:
    """When the exported model halts. Each precision chooses its own threshold later."""
    limit = options.max_segments or config.max_segments
    if config.arch == "transformer" and limit > 1:
        problem = f"a transformer runs one segment, not --max-segments {limit}"
        raise ValueError(f"{problem}; omit --max-segments")
    kind = options.policy or usual_kind(proof_exists=puzzle.proof_exists)
    return HaltingPolicy(kind=kind, max_segments=limit)


def provider_of(device: str) -> Provider:
    """What runs the graphs for `--device`; `auto` needs CUDA in PyTorch and in ONNX Runtime."""
    is_cuda = torch_device(device, "--device") == "cuda"
    if is_cuda and (device == "cuda" or CUDA.name in onnxruntime.get_available_providers()):
        return CUDA
    return CPU


def served_graph(
    model: hrm.HRM,
    puzzle: Puzzle,
    policy: HaltingPolicy,
    provider: Provider = CPU,
) -> ServedGraph:
    return ServedGraph(
        graph=segment_graph(model),
        puzzle=puzzle,
        puzzle_table=model.puzzle_table.float().numpy(),
        policy=policy,
        num_threads=machine.num_cores(),
        provider=provider,
    )
