"""hrm-eval: scores a model on held-out puzzles. PyTorch is imported when the command runs."""

import json
from contextlib import closing
from dataclasses import asdict

from rich.console import Console

from hrm_export.eval_options import EvaluationOptions
from hrm_host import command
from hrm_host.progress import stages_on

main = command.Command("hrm-eval", extra="export")


@main.command(
    groups={
        "Engine": "engine slots threads max_segments",
        "Output": "as_json as_markdown",
    },
    epilog="Example: hrm-eval runs/sudoku/best --data data/sudoku",
)
@command.taking(EvaluationOptions)
def evaluate_command(options: EvaluationOptions) -> None:
    """Score every halting policy by difficulty: exact solves, cells, mean segments, pass@k.

    With two models: what each proves and solves, and the difference with its 95 % interval.
    """
    from hrm_export.evaluation import evaluate, subject_of
    from hrm_export.side_by_side import compare

    if options.other is not None:
        with stages_on() as stages:
            report = compare(options, options.other, stages)
    else:
        subject = subject_of(options)
        with closing(subject.engine), stages_on() as stages:
            report = evaluate(subject, options, stages)
    if options.as_json:
        print(json.dumps(asdict(report)))
    elif options.as_markdown:
        print(report.markdown())
    else:
        Console().print(report.table())
