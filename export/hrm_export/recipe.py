"""How a checkpoint becomes a bundle, in the precisions asked for, each measured before it is written.

The bundle is written beside its name, measured through the real engine, and renamed only then: read `write_bundle`.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hrm_calibration.halting_curve import Rollout, choose, learned_curve, roll_out
from hrm_edge_runtime.bundle import GOLDEN_NAME, IDENTIFIERS_NAME, PUZZLE_TABLE_NAME, TASKS_NAME, Bundle, Golden
from hrm_edge_runtime.engines.engine import load_blanks, median_step_ms
from hrm_edge_runtime.manifest import write_manifest
from hrm_edge_runtime.parity import walk
from hrm_edge_runtime.parity.report import GOLDEN_FP32, LOGIT_TOLERANCE, SegmentLimits, breaks
from hrm_export.attempts import proven_by
from hrm_export.contents import Contents
from hrm_export.forms import Form, lower_precisions, unrolled_graph
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_export.options import Options, parse_loop
from hrm_export.torch_engine import SIZES, golden_traces
from hrm_host import atomic, command
from hrm_host.board import num_cores
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import questions_made

HALTING_LOSS = 0.005
"""Share of exact solves that stopping early may cost against running all segments, where no threshold is given."""
STRICT = GOLDEN_FP32.model_copy(
    update={"every_segment": SegmentLimits(worst={**GOLDEN_FP32.every_segment.worst, "logit_gap": LOGIT_TOLERANCE})}
)
"""Stricter than replaying elsewhere: PyTorch ran on this very processor, so no segment may differ by more."""
CANDIDATES = 16
"""Puzzles tried for each golden trace; not every one survives rounding."""
MEASURED_BATCHES = (1, 8)
MEASURE_S = 0.1  # a table of the report, no decision hangs on it
STEP = "step.fp32.onnx"
COST_OF_SIZE = "{board}: {proven:.1%} of {num_puzzles} proven in {mean_segments:.1f} segments of {segment_ms:.2f} ms"


class ParityError(ValueError):
    """A graph that does not say what PyTorch says, or that solves too much less than it."""

    exit_status = command.UNSOLVED


def write_bundle(path: Path, contents: Contents, options: Options, stages: Stages) -> list[Form]:
    """Write the bundle whole or not at all, float32 first.

    Refuses a path that is taken (FileExistsError), a float32 graph that differs from PyTorch on the golden traces, and
    another precision that loses more exact solves than `max_loss` (ParityError).
    """
    with atomic.new_directory(path) as unfinished:
        np.save(unfinished / PUZZLE_TABLE_NAME, contents.served.puzzle_table)
        (unfinished / IDENTIFIERS_NAME).write_text(json.dumps(list(contents.identifiers)) + "\n")
        if contents.tasks:
            (unfinished / TASKS_NAME).write_text(json.dumps(contents.tasks, separators=(",", ":")) + "\n")
        fp32 = Form(precision="fp32", portable=contents.served.graph)
        _write_and_measure(unfinished, fp32, contents, options, stages)
        say_cost_of_size(unfinished, contents, fp32, options, stages)
        golden, num_candidates = _golden(contents, fp32.policy.threshold, options.golden, stages)
        np.savez_compressed(unfinished / GOLDEN_NAME, allow_pickle=False, **vars(golden))
        fp32.origin = {"tolerance": LOGIT_TOLERANCE, "num_candidates": num_candidates}
        _compare(unfinished, fp32, golden, contents)
        _require_parity(fp32)
        fp32.origin["attempts"] = proven_by(unfinished / next(iter(fp32.graphs)), fp32, contents, stages)
        forms, served = [fp32], replace(contents.served, policy=fp32.policy)
        for form in lower_precisions(served, contents.calibration, options, stages):
            _write_and_measure(unfinished, form, contents, options, stages)
            form.lost = form.losses_against(fp32)
            _compare(unfinished, form, golden, contents)
            _require_quality(form, options.max_loss)
            forms.append(form)
        num_segments = parse_loop(options.loop)
        unrolled = {} if num_segments is None else _write_unrolled(unfinished, forms, num_segments)
        pages = {form.precision: form.as_json() for form in forms}
        (unfinished / "parity.json").write_text(json.dumps(pages, indent=2) + "\n")
        write_manifest(unfinished, **_manifest_fields(contents, forms, unrolled))
        Bundle.open(unfinished)
    return forms


def _write_and_measure(directory: Path, form: Form, contents: Contents, options: Options, stages: Stages) -> None:
    """Every held-out puzzle through all segments of the graph that a CPU runs; the halting rule is applied afterwards.

    Without `--threshold` the one of fewest segments is chosen that loses at most the share `HALTING_LOSS` against all
    segments. Chosen and scored on the same puzzles.
    """
    for name, graph in form.graphs.items():
        (directory / name).write_bytes(graph.SerializeToString(deterministic=True))
    served, threshold = contents.served, options.threshold
    form.rollout = _rollout(contents, form, stages)
    form.curve = learned_curve(form.rollout)
    if threshold is None:
        threshold = choose(form.curve, HALTING_LOSS).policy.threshold
    form.policy = replace(served.policy, threshold=threshold)


def _rollout(contents: Contents, form: Form, stages: Stages) -> Rollout:
    served = contents.served
    show = partial(stages.show, f"measuring {form.precision}")
    with served.engine(list(form.graphs.values())[-1]) as engine:
        return roll_out(
            engine,
            served.puzzle,
            served.puzzle_table,
            contents.held_out,
            served.policy.max_segments,
            progress=show,
        )


def _golden(contents: Contents, threshold: float, num_golden: int, stages: Stages) -> tuple[Golden, int]:
    num_candidates = min(CANDIDATES * num_golden, len(contents.held_out))
    candidates = contents.held_out.at(np.arange(num_candidates))
    show = partial(stages.show, "golden traces")
    return golden_traces(contents.model, candidates, threshold, num_golden, progress=show)


def _compare(directory: Path, form: Form, golden: Golden, contents: Contents) -> None:
    table, puzzle = contents.served.puzzle_table, contents.served.puzzle
    form.parity = {}
    for name in form.graphs:
        with closing(contents.engine(directory / name, len(golden.tokens_BT), want_logits=True)) as engine:
            form.parity[name] = walk.compare(golden, engine, puzzle_table=table, puzzle=puzzle, policy=form.policy)


def _require_parity(form: Form) -> None:
    broken = breaks(form.on_cpu, STRICT)
    if broken:
        raise ParityError(
            f"the graph differs from PyTorch ({broken[0]}), so nothing was written; report the checkpoint's "
            "config.json as a fault"
        )


def _require_quality(form: Form, max_loss: float) -> None:
    """Refuses a precision that loses more exact solves than `max_loss` points or whose logits are not finite."""
    assert form.lost is not None
    exact = form.lost["exact"]
    if 100 * exact.loss > max_loss:
        raise ParityError(
            f"{form.precision} loses {100 * exact.loss:.2f} points of exact solves against fp32 over "
            f"{exact.num_puzzles} puzzles (95 %: {100 * exact.low:.2f} to {100 * exact.high:.2f}) where --max-loss "
            f"allows {max_loss:g}, so nothing was written; allow more, leave it out, or give INT8 a smaller "
            "--int8-budget"
        )
    for name, report in form.parity.items():
        if not np.isfinite(report.max_logit_gap):
            raise ParityError(
                f"{name} gives logits that are not finite, so nothing was written; leave {form.precision} out and "
                "report the checkpoint's config.json as a fault"
            )


def _write_unrolled(directory: Path, forms: Sequence[Form], num_segments: int) -> dict[str, str]:
    """The unrolled form of every precision; file names by precision."""
    stored = stored_sizes(forms[0].portable)
    names = {form.precision: f"unrolled.{form.precision}.onnx" for form in forms}
    for form in forms:
        graph = unrolled_graph(form.portable, form.policy, num_segments or form.policy.max_segments)
        check_graph(graph, stored)
        (directory / names[form.precision]).write_bytes(graph.SerializeToString(deterministic=True))
    return names


def _manifest_fields(contents: Contents, forms: Sequence[Form], unrolled: Mapping[str, str]) -> dict[str, Any]:
    config, policy = contents.model.config, forms[0].policy
    return {
        "name": contents.name,
        "puzzle": contents.served.puzzle.name,
        **{size: getattr(config, size) for size in SIZES},
        "max_segments": policy.max_segments,
        "halting": {"policy": policy.kind, "threshold": policy.threshold},
        "precisions": {form.precision: next(iter(form.graphs)) for form in forms},
        "cpu_graphs": {form.precision: list(form.graphs)[-1] for form in forms if form.cpu is not None},
        "unrolled": unrolled,
        "attempts": max(proven := forms[0].origin["attempts"], key=proven.__getitem__, default="symmetries"),
        "curves": {form.precision: form.halting_curve() for form in forms},
        "provenance": contents.provenance(),
    }


def segment_ms(graph: Path, batch: int, contents: Contents) -> float:
    """The median time of a segment with every slot in use, all cores."""
    with closing(contents.engine(graph, batch)) as engine:
        load_blanks(engine, contents.served.puzzle_table[0])
        return median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=1)


def say_cost_of_size(directory: Path, contents: Contents, form: Form, options: Options, stages: Stages) -> None:
    """What another board costs beside that of training: both in float32, on as many puzzles.

    Said before golden traces are sought: on a board that the model does not know, there may be none.
    """
    if contents.trained is None:
        return
    with TemporaryDirectory() as other:
        made = questions_made(contents.trained.puzzle, len(contents.held_out), num_workers=num_cores())
        before = replace(contents, served=contents.trained, held_out=made)
        trained = Form(precision="fp32", portable=before.served.graph)
        _write_and_measure(Path(other), trained, before, options, stages)
        for folder, of, score in ((Path(other), before, trained.score), (directory, contents, form.score)):
            time_ms, board = segment_ms(folder / STEP, 1, of), of.served.puzzle.name
            stages.say(COST_OF_SIZE.format(board=board, segment_ms=time_ms, **vars(score)))


def show(out: Path, contents: Contents, forms: Sequence[Form], *, as_json: bool) -> None:
    bundle = Bundle.open(out)
    rows = [_figures(bundle, contents, form) for form in forms]
    policy, puzzle = forms[0].policy, contents.served.puzzle.name
    if as_json:
        page = {
            "bundle": str(out),
            "name": contents.name,
            "puzzle": puzzle,
            "num_parameters": contents.num_parameters,
            "halting": {"policy": policy.kind, "max_segments": policy.max_segments},
            "num_held_out": len(contents.held_out),
            "precisions": rows,
        }
        print(json.dumps(page))
        return
    title = f"{out} ({puzzle}, {contents.num_parameters:,} parameters)"
    table = Table("", *(row["precision"] for row in rows), title=title, title_justify="left")
    columns = [_cells(row) for row in rows]
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "–") for column in columns))
    console, report = Console(), next(iter(forms[0].parity.values()))
    console.print(table)
    console.print(
        f"Halting {policy.kind}, at most {policy.max_segments} segments; {len(contents.held_out)} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of {report.num_puzzles} of "
        f"{forms[0].origin['num_candidates']} puzzles (others may amplify rounding). "
        f"Times on this machine ({contents.served.provider.device or 'all cores'}).",
        highlight=False,
        soft_wrap=True,
    )


def _figures(bundle: Bundle, contents: Contents, form: Form) -> dict[str, Any]:
    """One precision as the CPU runs it, its size as it travels; `segment_ms` by batch size."""
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    names, score = list(form.graphs), form.score
    graph = bundle.graph_path(form.precision, device="cpu")
    return {
        "precision": form.precision,
        "size_bytes": sizes[names[0]],
        "cpu_size_bytes": sizes[names[-1]] if form.cpu is not None else None,
        "ratio": sizes[names[0]] / sizes[bundle.manifest.precisions["fp32"]],
        "logit_gap": form.on_cpu.max_logit_gap,
        "exact": score.exact,
        "proven": score.proven,
        "mean_segments": score.mean_segments,
        "threshold": form.policy.threshold,
        "lost": None if form.lost is None else asdict(form.lost["exact"]),
        "segment_ms": {batch: segment_ms(graph, batch, contents) for batch in MEASURED_BATCHES},
    }


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    lost = row["lost"] and [100 * row["lost"][name] for name in ("loss", "low", "high")]
    return {
        "file": f"{row['size_bytes']:,} bytes",
        "of fp32": f"{row['ratio']:.3f}",
        **({} if row["cpu_size_bytes"] is None else {"form for CPUs": f"{row['cpu_size_bytes']:,} bytes"}),
        "logit gap to PyTorch": f"{row['logit_gap']:.1e}",
        "exact solves": f"{100 * row['exact']:.1f} %",
        "points lost (95 %)": f"{lost[0]:.2f} ({lost[1]:.2f} to {lost[2]:.2f})" if lost else "–",
        "verified solves": f"{100 * row['proven']:.1f} %",
        "mean segments": f"{row['mean_segments']:.2f}",
        "halting threshold": f"{row['threshold']:.3g}",
        **{f"segment, batch {batch}": f"{time_ms:.2f} ms" for batch, time_ms in row["segment_ms"].items()},
    }
