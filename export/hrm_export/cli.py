"""hrm-export: a checkpoint becomes a bundle; nothing heavy is imported before it begins."""

import subprocess
import sys
from pathlib import Path

import typer

from hrm_export.options import Options
from hrm_host import command

main = command.Command("hrm-export", extra="export")


@main.command(
    groups={
        "INT8": "int8 calib int8_budget report",
        "Loop and halting": "loop policy threshold max_segments",
        "Measuring": "data held_out max_loss budget_minutes golden",
    },
    epilog="Example: hrm-export runs/sudoku/best --fp16 --int8 --calib sudoku --data data/sudoku",
)
@command.taking(Options)
def export(options: Options) -> None:
    """Make a bundle: step graphs, puzzle table and golden traces, measured and compared with PyTorch first."""
    from hrm_export.contents import bundle_name, contents_of, find_checkpoint
    from hrm_export.recipe import show, write_bundle
    from hrm_host.progress import stages_on

    source = find_checkpoint(options.source, options.calib)
    out = options.out or Path(f"{bundle_name(source)}.bundle")
    with stages_on() as stages:
        contents = contents_of(options, source, out, stages)
        forms = write_bundle(out, contents, options, stages)
    show(out, contents, forms, as_json=options.as_json)
    if options.build_engine:  # in a process of its own, whose memory is free again when the engines are built
        build = [sys.executable, "-m", "hrm_edge_runtime.engines.trt.build", str(out)]
        raise typer.Exit(subprocess.run(build).returncode)
