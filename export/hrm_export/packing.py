"""From a model to a bundle on disk: written beside its name, measured through the real engine, and only then named.

Whatever fails, is refused or dies on the way leaves nothing under the bundle's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import GOLDEN_NAME, PUZZLE_TABLE_NAME, Bundle, Golden
from hrm_edge_runtime.manifest import write_manifest
from hrm_edge_runtime.parity import LOGIT_TOLERANCE
from hrm_export import golden as golden_traces
from hrm_export.graph_rules import check_graph
from hrm_export.onnx_graph import stored_sizes
from hrm_export.options import Options
from hrm_export.precisions import Bench, Form, lower_precisions
from hrm_export.provenance import provenance
from hrm_export.results import Contents, Judge, Result
from hrm_export.unrolled import unrolled_graph
from hrm_host.atomic import new_directory
from hrm_host.progress import Stages

CANDIDATES = 16
"""Puzzles tried for each golden trace, since not every trace survives rounding."""


def write_bundle(path: Path, contents: Contents, options: Options, stages: Stages) -> list[Result]:
    """Writes the bundle whole or not at all, float32 first.

    Refuses a path that is taken (FileExistsError); a float32 graph that differs from PyTorch on the golden traces in an
    answer, in a halt or by more than LOGIT_TOLERANCE in a logit or a margin after any segment, and another precision
    that loses more exact solves than `max_loss` (ParityError).
    """
    with new_directory(path) as unfinished:
        np.save(unfinished / PUZZLE_TABLE_NAME, contents.puzzle_table)
        (unfinished / "identifiers.json").write_text(json.dumps(list(contents.identifiers)) + "\n")
        judge = Judge(directory=unfinished, contents=contents, options=options, stages=stages)
        form = Form(precision="fp32", portable=contents.graph, origin={})
        measured = judge.write_and_measure(form)
        golden, num_candidates = _golden(unfinished, contents, measured.policy.threshold, options.puzzles)
        origin = {"tolerance": LOGIT_TOLERANCE, "num_candidates": num_candidates}
        single = judge.single(replace(form, origin=origin), measured, golden)
        lower = lower_precisions(_bench(contents, measured.policy), options, stages)
        results = [single, *(judge.lower(form, single, golden) for form in lower)]
        unrolled = _write_unrolled(unfinished, results, contents, options)
        pages = {result.form.precision: result.as_json() for result in results}
        (unfinished / "parity.json").write_text(json.dumps(pages, indent=2) + "\n")
        write_manifest(unfinished, **_manifest_fields(contents, results, unrolled))
        Bundle.open(unfinished)
    return results


def _bench(contents: Contents, policy: HaltingPolicy) -> Bench:
    """Calibration runs under the rule that float32 is served with."""
    return Bench(
        graph=contents.graph,
        puzzle=contents.puzzle,
        puzzle_table=contents.puzzle_table,
        questions=contents.calibration,
        policy=policy,
    )


def _golden(directory: Path, contents: Contents, threshold: float, count: int) -> tuple[Golden, int]:
    """Traces of held-out puzzles, kept in the bundle, and how many puzzles were tried for them."""
    candidates = contents.held_out.at(np.arange(min(CANDIDATES * count, len(contents.held_out))))
    golden, num_candidates = golden_traces.golden_traces(contents.model, candidates, threshold, count)
    golden_traces.save(golden, directory / GOLDEN_NAME)
    return golden, num_candidates


def _write_unrolled(directory: Path, results: Sequence[Result], contents: Contents, options: Options) -> dict[str, str]:
    """The unrolled form of every precision, where it is asked for; file names by precision."""
    names: dict[str, str] = {}
    if options.unrolled is None:
        return names
    for result in results:
        policy, precision = result.measured.policy, result.form.precision
        graph = unrolled_graph(result.form.portable, policy, options.unrolled or policy.max_segments)
        check_graph(graph, stored_sizes(contents.graph))
        names[precision] = f"unrolled.{precision}.onnx"
        (directory / names[precision]).write_bytes(graph.SerializeToString(deterministic=True))
    return names


def _manifest_fields(contents: Contents, results: Sequence[Result], unrolled: Mapping[str, str]) -> dict[str, Any]:
    config, forms = contents.model.config, [result.form for result in results]
    policy = results[0].measured.policy
    return {
        "name": contents.name,
        "puzzle": contents.puzzle.name,
        "seq_len": config.seq_len,
        "vocab_size": config.vocab_size,
        "num_positions": config.num_positions,
        "hidden_size": config.hidden_size,
        "puzzle_vector_size": config.puzzle_vector_size,
        "num_puzzle_ids": config.num_puzzle_ids,
        "max_segments": policy.max_segments,
        "halting": {"policy": policy.kind, "threshold": policy.threshold},
        "precisions": {form.precision: next(iter(form.graphs)) for form in forms},
        "cpu_graphs": {form.precision: list(form.graphs)[-1] for form in forms if form.cpu is not None},
        "unrolled": unrolled,
        "curves": {result.form.precision: result.measured.halting_curve() for result in results},
        "provenance": provenance(contents.model, contents.meta),
    }
