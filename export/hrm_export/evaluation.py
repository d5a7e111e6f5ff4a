"""How good a checkpoint or a bundle is on held-out puzzles, under every halting policy. Read `evaluate`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_calibration.halting_curve import ALL, HaltingReport, PolicyScore, report_on, roll_out
from hrm_edge_runtime.contract.bundle import IDENTIFIERS_NAME, Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.factory import choose, engine_for
from hrm_export.eval_cli import EvaluationOptions
from hrm_export.torch_engine import TorchEngine, torch_device
from hrm_host.board import num_cores
from hrm_host.progress import Stages
from hrm_model import checkpoint, geometry
from hrm_puzzles import registry
from hrm_puzzles.data.sources import find_questions
from hrm_puzzles.puzzle import Puzzle, Voting

NUM_FRESH = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is evaluated, opened; `precision` says what runs."""

    name: str
    precision: str
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    max_segments: int
    engine: Engine


def subject_of(options: EvaluationOptions) -> Subject:
    path = Path(options.source)
    path = checkpoint.resolve(path / "best" if (path / "best").is_file() else path)
    return (_checkpoint if (path / checkpoint.CONFIG).is_file() else _bundle)(path, options)


def _checkpoint(path: Path, options: EvaluationOptions) -> Subject:
    model, meta = checkpoint.load(path)
    puzzle = registry.get(options.board or str(meta.get("puzzle")))
    model = geometry.on_board(model, puzzle)
    sizes = model.config.seq_len, model.config.vocab_size
    if sizes != (puzzle.seq_len, puzzle.vocab_size):
        raise ValueError(f"{path} has {sizes[0]} positions of {sizes[1]} tokens, which is not {puzzle.name}")
    if options.engine not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--engine {options.engine} is for bundles; a checkpoint runs in PyTorch on cpu or cuda")
    device = torch_device(options.engine, "--engine")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return Subject(
        name=str(path),
        precision=f"PyTorch on {device}",
        puzzle=puzzle,
        puzzle_table=model.puzzle_table.float().numpy(),
        max_segments=options.max_segments or model.config.max_segments,
        engine=TorchEngine(model.to(device), options.slots),
    )


def _bundle(path: Path, options: EvaluationOptions) -> Subject:
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


def evaluate(subject: Subject, options: EvaluationOptions, stages: Stages) -> HaltingReport:
    """Runs every puzzle through all segments once and scores each policy on that; variants of a task vote."""
    data, puzzle, making = Path(options.data), subject.puzzle, partial(stages.show, "making puzzles")
    count = options.puzzles or (sys.maxsize if data.exists() else NUM_FRESH)
    asked = find_questions(options.data, puzzle, count=count, num_workers=num_cores(), progress=making)
    asked.require_ids(len(subject.puzzle_table))
    answers_NT, labels_NT, q_halt_N = np.zeros_like(asked.tokens_NT), asked.labels_NT, np.zeros(len(asked), np.float32)

    def keep(part: slice, output: StepOutput) -> None:
        answers_NT[part], q_halt_N[part] = output.answer_BT, output.q_halt_B

    show, table_PE, limit = partial(stages.show, "puzzles"), subject.puzzle_table, subject.max_segments
    rollout = roll_out(subject.engine, puzzle, table_PE, asked, limit, progress=show, at_the_end=keep)
    open_NT = (asked.tokens_NT != labels_NT) & (labels_NT >= 0)
    pass_at: Mapping[int, float] = {}
    if isinstance(puzzle, Voting) and data.is_dir():
        identifiers = json.loads((data / IDENTIFIERS_NAME).read_text(encoding="utf-8"))
        names = [identifiers[number] for number in asked.puzzle_ids_N.tolist()]
        pass_at = puzzle.pass_at(names, asked.tokens_NT, labels_NT, answers_NT, q_halt_N)
    return report_on(
        rollout,
        model=subject.name,
        precision=subject.precision,
        max_loss=options.max_loss / 100,
        cells_N=1 - (open_NT & (answers_NT != labels_NT)).sum(1) / np.maximum(1, open_NT.sum(1)),
        pass_at=pass_at,
    )


def save_picture(path: Path, report: HaltingReport) -> None:
    """Exact solves over mean segments: on the left every policy, on the right the fixed ones by difficulty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    policies, difficulties = figure.subplots(1, 2, sharey=True)
    lines: list[tuple[Any, Sequence[PolicyScore], str, str, str]] = [
        (policies, report.fixed, "fixed", "o-", ALL),
        (policies, report.learned, "learned, any threshold", "-", ALL),
        (policies, [report.plain], "learned > 0", "k*", ALL),
        (policies, [report.chosen], f"calibrated > {report.chosen.policy.threshold:.3g}", "ks", ALL),
        *((policies, [verified], "until proven", "kD", ALL) for verified in [report.verified] if verified),
        *((difficulties, report.fixed, name, "o-", name) for name in report.plain.scores),
    ]
    for axes, points, label, style, of in lines:
        spent, solved = zip(*((p.scores[of].mean_segments, 100 * p.scores[of].exact) for p in points), strict=True)
        axes.plot(spent, solved, style, label=label)
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
