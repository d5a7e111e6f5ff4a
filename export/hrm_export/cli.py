"""hrm-export: turn a checkpoint into a bundle. Heavy imports wait until the command runs."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import typer

from hrm_export.options import Options, parse_loop
from hrm_host import command

main = command.Command("hrm-export", extra="export")


@main.command(
    groups={
        "INT8": "int8 calib",
        "Loop and halting": "loop policy max_segments",
        "Measuring": "data puzzle_ids held_out max_loss budget_minutes golden",
    },
    epilog="Example: hrm-export runs/sudoku/best --fp16 --int8 --calib sudoku --data data/sudoku",
)
@command.taking(Options)
def export(options: Options) -> None:
    """Make a bundle of step graphs, puzzle table and golden traces, compared with PyTorch."""
    from hrm_calibration.judge import LimitedStages, judge_precisions, measure_fp32
    from hrm_export.bundle import page_of, print_table, write_bundle
    from hrm_export.contents import contents_of
    from hrm_export.inputs import LATEST, bundle_name, find_checkpoint
    from hrm_export.torch_engine import golden_traces
    from hrm_host.progress import stages_on

    source = find_checkpoint(options.source, options.calib)
    out = options.out or Path(f"{bundle_name(source)}.bundle")
    with stages_on() as shown:
        stages = LimitedStages(shown=shown, minutes=options.budget_minutes)
        if source.name == LATEST and source != options.source:
            stages.say(f"{source.parent} has no best checkpoint; {source} is exported")
        contents = contents_of(options, source, out, stages)
        exam = contents.exam
        fp32 = measure_fp32(exam, stages)
        traces = golden_traces(
            contents.model,
            exam.held_out,
            fp32.policy.threshold,
            options.golden,
            progress=partial(shown.show, "golden traces"),
        )
        judged = judge_precisions(exam, fp32, traces, stages)
        write_bundle(out, contents, judged, parse_loop(options.loop))
    page = page_of(out, contents, judged.forms)
    if options.as_json:
        print(json.dumps(page))
    else:
        print_table(page, judged.forms[0])
        typer.echo(f"Next: {command.runnable('hrm-serve', out)}")
    if options.build_engine:
        # in a process of its own, whose memory is free again once the engines are built
        build = [sys.executable, "-m", "hrm_parity.trt_build", str(out)]
        raise typer.Exit(subprocess.run(build).returncode)
