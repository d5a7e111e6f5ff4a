"""hrm-export: turn a checkpoint into a bundle. Heavy imports wait until the command runs."""

import shlex
import subprocess
import sys
from pathlib import Path

import typer

from hrm_export.options import Options, parse_loop
from hrm_host import command

main = command.Command("hrm-export", extra="export")


@main.command(
    groups={
        "INT8": "int8 calib int8_budget",
        "Loop and halting": "loop policy threshold max_segments",
        "Measuring": "data puzzle_ids held_out max_loss budget_minutes golden",
    },
    epilog="Example: hrm-export runs/sudoku/best --fp16 --int8 --calib sudoku --data data/sudoku",
)
@command.taking(Options)
def export(options: Options) -> None:
    """Make a bundle of step graphs, puzzle table and golden traces, compared with PyTorch."""
    from hrm_export.contents import contents_of
    from hrm_export.inputs import LATEST, bundle_name, find_checkpoint
    from hrm_export.limit import LimitedStages
    from hrm_export.precisions import judge_precisions
    from hrm_export.recipe import write_bundle
    from hrm_export.summary import print_json, print_table
    from hrm_host.progress import stages_on

    source = find_checkpoint(options.source, options.calib)
    out = options.out or Path(f"{bundle_name(source)}.bundle")
    with stages_on() as shown:
        stages = LimitedStages(shown=shown, minutes=options.budget_minutes)
        if source.name == LATEST and source != options.source:
            stages.say(f"{source.parent} has no best checkpoint; {source} is exported")
        contents = contents_of(options, source, out, stages)
        judged = judge_precisions(contents, options, stages)
        write_bundle(out, contents, judged, parse_loop(options.loop))
    if options.as_json:
        print_json(out, contents, judged.forms)
    else:
        print_table(out, contents, judged.forms)
        typer.echo(f"Next: {command.runnable('hrm-serve')} {shlex.quote(str(out))}")
    if options.build_engine:
        # in a process of its own, whose memory is free again once the engines are built
        build = [sys.executable, "-m", "hrm_parity.trt_build", str(out)]
        raise typer.Exit(subprocess.run(build).returncode)
