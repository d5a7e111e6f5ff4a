"""hrm-export: a checkpoint becomes a bundle, in the precisions asked for, each measured before it is written.

hrm-export runs/sudoku/best --out sudoku.bundle
hrm-export runs/sudoku/best --fp16 --int8 --calib data/sudoku --data data/sudoku
hrm-export --int8 --calib maze
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.bundle import Bundle
from hrm_export.contents import Contents, Options, bundle_name, contents_of, find_checkpoint
from hrm_export.packing import MEASURED_BATCHES, Form, segment_ms, write_bundle
from hrm_host.command import refusing, taking
from hrm_host.progress import stages_on

main = typer.Typer(add_completion=False, rich_markup_mode=None)
"""Entry point of `hrm-export`."""


@main.command(epilog="Example: hrm-export runs/sudoku/best --fp16 --int8 --calib sudoku --data data/sudoku")
@refusing("hrm-export")
@taking(Options)
def export(options: Options) -> None:
    """Make a bundle: step graphs, puzzle table and golden traces, measured and compared with PyTorch first."""
    source = find_checkpoint(options.source, options.calib)
    out = options.out or Path(f"{bundle_name(source)}.bundle")
    with stages_on() as stages:
        contents = contents_of(options, source, out, stages)
        forms = write_bundle(out, contents, options, stages)
    _show(out, contents, forms, as_json=options.as_json)
    if options.engine:  # in a process of its own, whose memory is free again when the engines are built
        build = [sys.executable, "-m", "hrm_edge_runtime.engines.trt.build", str(out)]
        raise typer.Exit(subprocess.run(build).returncode)


def _show(out: Path, contents: Contents, forms: Sequence[Form], *, as_json: bool) -> None:
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
        "Times on this machine, all cores.",
        highlight=False,
        soft_wrap=True,
    )


def _figures(bundle: Bundle, contents: Contents, form: Form) -> dict[str, Any]:
    """One precision as the CPU runs it, its size as it travels; shares are of the held-out puzzles.

    `logit_gap` is the largest against PyTorch on the golden traces, `segment_ms` is by batch size on this machine.
    """
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    names, score = list(form.graphs), form.score
    graph, table = bundle.graph_path(form.precision, device="cpu"), bundle.puzzle_table
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
        "lost": None if form.lost is None else form.lost["exact"].model_dump(),
        "segment_ms": {batch: segment_ms(graph, batch, contents.held_out, table) for batch in MEASURED_BATCHES},
    }


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """What a reader is shown of the figures, by its title."""
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
