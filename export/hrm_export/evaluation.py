"""hrm-eval: how good a checkpoint or a bundle is on held-out puzzles, under every halting policy; read `evaluate`.

hrm-eval runs/sudoku/best --data data/sudoku
hrm-eval sudoku-6x6 --engine cpu:int8 --csv test.csv --json
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console

from hrm_calibration.halting_curve import ALL, HaltingReport, PolicyScore, report_on, roll_out
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.factory import choose, engine_for
from hrm_export.torch_engine import TorchEngine
from hrm_host import command
from hrm_host.progress import OnProgress, stages_on
from hrm_model import checkpoint, geometry
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_from_csv, questions_from_data
from hrm_puzzles.puzzle import Puzzle, Voting

main = command.Command("hrm-eval", extra="export")
"""Entry point of `hrm-eval`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's options as given."""

    source: Annotated[
        str,
        typer.Argument(help="Checkpoint, a run or its file latest or best, a bundle, or the name of a shipped one."),
    ]
    data: Annotated[Path | None, typer.Option(help="Data set whose test split gives the puzzles.")] = None
    csv: Annotated[Path | None, typer.Option(help="CSV file with source,question,answer,rating instead.")] = None
    puzzles: Annotated[int | None, typer.Option(min=1, help="A random choice of so many; without it, all.")] = None
    board: Annotated[str | None, typer.Option(help="Puzzle of another size for a checkpoint's relational weights.")] = (
        None
    )
    engine: Annotated[
        str, typer.Option(help="PyTorch on cpu or cuda; of a bundle ENGINE[:PRECISION], as of hrm-serve.")
    ] = "auto"
    max_segments: Annotated[int | None, typer.Option(min=1, help="Segments a puzzle may run; else the model's.")] = None
    max_loss: Annotated[float, typer.Option(min=0, max=100, help="Points of exact solves that may be lost.")] = 0.5
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Puzzles at a time.")] = 64
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine; without it, all cores.")] = None
    picture: Annotated[Path | None, typer.Option(help="File for a picture of the policies, .png or .svg.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with the whole curve.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is evaluated, opened; `precision` says what runs."""

    name: str
    precision: str
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    max_segments: int
    engine: Engine


@main.command(epilog="Example: hrm-eval runs/sudoku/best --data data/sudoku --picture eval.png")
@command.taking(Options)
def evaluate_command(options: Options) -> None:
    """Exact solves, cells and mean segments of every halting policy, by difficulty; for ARC pass@k by votes."""
    subject = subject_of(options)
    with closing(subject.engine), stages_on() as stages:
        questions, identifiers = _questions(options, subject)
        report = evaluate(subject, questions, identifiers, options.max_loss / 100, partial(stages.show, "puzzles"))
    if options.picture is not None:
        save_picture(options.picture, report)
    if options.as_json:
        print(json.dumps(asdict(report)))
    elif options.as_markdown:
        print(report.markdown())
    else:
        Console().print(report.table())


def subject_of(options: Options) -> Subject:
    path = Path(options.source)
    path = checkpoint.resolve(path / "best" if (path / "best").is_file() else path)
    return (_checkpoint if (path / checkpoint.CONFIG).is_file() else _bundle)(path, options)


def _checkpoint(path: Path, options: Options) -> Subject:
    model, meta = checkpoint.load(path)
    puzzle = registry.get(options.board or str(meta.get("puzzle")))
    model = geometry.on_board(model, puzzle)
    sizes = model.config.seq_len, model.config.vocab_size
    if sizes != (puzzle.seq_len, puzzle.vocab_size):
        raise ValueError(f"{path} has {sizes[0]} positions of {sizes[1]} tokens, which is not {puzzle.name}")
    if options.engine not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--engine {options.engine} is for bundles; a checkpoint runs in PyTorch on cpu or cuda")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.engine == "auto" else options.engine
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--engine cuda needs a CUDA device and this PyTorch sees none; leave the option away")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    table_PE = model.puzzle_table.float().numpy()
    return Subject(
        name=str(path),
        precision=f"PyTorch on {device}",
        puzzle=puzzle,
        puzzle_table=table_PE,
        max_segments=options.max_segments or model.config.max_segments,
        engine=TorchEngine(model.to(device), options.slots),
    )


def _bundle(path: Path, options: Options) -> Subject:
    bundle = Bundle.open(find_bundle(str(path)))
    choice = choose(bundle, options.engine, num_slots=options.slots)
    return Subject(
        name=bundle.manifest.name,
        precision=str(choice),
        puzzle=bundle.puzzle,
        puzzle_table=bundle.puzzle_table,
        max_segments=options.max_segments or bundle.manifest.max_segments,
        engine=engine_for(bundle, engine=str(choice), num_slots=options.slots, num_threads=options.threads),
    )


def _questions(options: Options, subject: Subject) -> tuple[Questions, list[str]]:
    """The puzzles, and where variants of a task vote the names of the puzzle ids."""
    puzzle, identifiers = subject.puzzle, list[str]()
    if options.csv is not None and options.data is None:
        questions = questions_from_csv(options.csv, puzzle)
    elif options.data is not None and options.csv is None:
        questions = questions_from_data(options.data, puzzle)
        if isinstance(puzzle, Voting):
            identifiers = json.loads((options.data / "identifiers.json").read_text(encoding="utf-8"))
    else:
        raise ValueError("the held-out puzzles come from one place; give either --data or --csv")
    questions.require_ids(len(subject.puzzle_table))
    return questions if options.puzzles is None else questions.sample(options.puzzles), identifiers


def evaluate(
    subject: Subject, questions: Questions, identifiers: list[str], max_loss: float, progress: OnProgress
) -> HaltingReport:
    """Runs every puzzle through all segments once and scores each policy on that."""
    answers_NT, labels_NT = np.zeros_like(questions.tokens_NT), questions.labels_NT
    q_halt_N = np.zeros(len(questions), np.float32)

    def keep(part: slice, output: StepOutput) -> None:
        answers_NT[part], q_halt_N[part] = output.answer_BT, output.q_halt_B

    rollout = roll_out(
        subject.engine,
        subject.puzzle,
        subject.puzzle_table,
        questions,
        subject.max_segments,
        progress=progress,
        at_the_end=keep,
    )
    open_NT = (questions.tokens_NT != labels_NT) & (labels_NT >= 0)
    cells_N = 1 - (open_NT & (answers_NT != labels_NT)).sum(1) / np.maximum(1, open_NT.sum(1))
    pass_at: Mapping[int, float] = {}
    if identifiers and isinstance(subject.puzzle, Voting):
        names = [identifiers[number] for number in questions.puzzle_ids_N.tolist()]
        pass_at = subject.puzzle.pass_at(names, questions.tokens_NT, labels_NT, answers_NT, q_halt_N)
    return report_on(
        rollout, model=subject.name, precision=subject.precision, max_loss=max_loss, cells_N=cells_N, pass_at=pass_at
    )


def save_picture(path: Path, report: HaltingReport) -> None:
    """Exact solves over mean segments: on the left every policy, on the right the fixed ones by difficulty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    policies, difficulties = figure.subplots(1, 2, sharey=True)

    def draw(axes: Any, points: Sequence[PolicyScore], label: str, style: str, of: str = ALL) -> None:
        scores = [point.scores[of] for point in points]
        axes.plot(
            [score.mean_segments for score in scores], [100 * score.exact for score in scores], style, label=label
        )

    draw(policies, report.fixed, "fixed", "o-")
    draw(policies, report.learned, "learned, any threshold", "-")
    draw(policies, [report.plain], "learned > 0", "k*")
    draw(policies, [report.chosen], f"calibrated > {report.chosen.policy.threshold:.3g}", "ks")
    if report.verified is not None:
        draw(policies, [report.verified], "until proven", "kD")
    for name, score in report.plain.scores.items():
        draw(difficulties, report.fixed, f"{name} ({score.num_puzzles})", "o-", name)
    for axes, title in ((policies, "halting policies"), (difficulties, "fixed, by difficulty")):
        axes.set(xlabel="mean segments", xscale="log", title=title, ylim=(0, 102))
        counts = [point.policy.max_segments for point in report.fixed]
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    policies.set_ylabel("exact solves (%)")
    figure.suptitle(f"{report.model} ({report.precision})", fontsize=10)
    figure.savefig(path, dpi=120)
