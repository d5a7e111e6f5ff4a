"""The options of hrm-export, and what goes into the bundle; everything here is refused before anything is computed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import onnx
import onnxruntime
import torch
import typer

from hrm_calibration.int8 import Int8Settings
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy, PolicyKind
from hrm_export.segment import segment_graph
from hrm_host import atomic, board, progress
from hrm_model import checkpoint, geometry, hrm
from hrm_model.config import HRMConfig
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import BLANK_IDENTIFIER, open_split
from hrm_puzzles.data.sources import Questions, find_questions
from hrm_puzzles.puzzle import NamedVariants, Puzzle

RUNS, BEST = Path("runs"), "best"
NUM_CALIBRATION = 8192
"""Puzzles reserved for calibration: at most four times those to measure on, and at least a quarter of a small set."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's options as given."""

    source: Annotated[
        Path | None,
        typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or a run's file latest or best; else runs/CALIB/best."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Bundle directory to make, not there yet; else RUN.bundle.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the model; without it, that of the directory.")] = None
    board: Annotated[
        str | None, typer.Option(help="Another size for relational weights, as 30x30; shows what that costs.")
    ] = None
    fp16: Annotated[bool, typer.Option("--fp16", help="Add a float16 graph.")] = False
    int8: Annotated[bool, typer.Option("--int8", help="Calibrate; add an INT8 graph and its CPU form.")] = False
    calib: Annotated[
        str | None, typer.Option(help="Puzzles: sudoku, maze, arc, logistics (made, or from --data), or a path.")
    ] = None
    int8_budget: Annotated[
        float, typer.Option(min=0, help="Points INT8 may lose; inputs of the worst layers stay float until it holds.")
    ] = 100 * Int8Settings.budget
    cache: Annotated[Path | None, typer.Option(help="File that keeps the calibration for the next time.")] = None
    report: Annotated[Path | None, typer.Option(help="Directory for the calibration's report and pictures.")] = None
    loop: Annotated[
        str, typer.Option(help="host; or unrolled[=N] to add a graph of N segments that halts by itself.")
    ] = "host"
    engine: Annotated[bool, typer.Option("--engine", help="Build TensorRT engines for this machine's GPU.")] = False
    policy: Annotated[
        str | None, typer.Option(help="When to stop: verified, learned or fixed; verified where a proof exists.")
    ] = None
    threshold: Annotated[
        float | None, typer.Option(help="Halting margin above which the model stops; else chosen by the curve.")
    ] = None
    max_segments: Annotated[
        int | None, typer.Option(min=1, help="Segments a puzzle may run; without it, as many as in training.")
    ] = None
    data: Annotated[
        Path | None, typer.Option(help="Data set whose test split gives the held-out puzzles; else they are made.")
    ] = None
    held_out: Annotated[int, typer.Option(min=1, help="Puzzles to measure every precision on, at most.")] = 2000
    max_loss: Annotated[float, typer.Option(help="Points of exact solves a precision may lose against fp32.")] = 1.0
    puzzles: Annotated[int, typer.Option(min=1, help="Golden puzzles to compare with PyTorch on, at most.")] = 16
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False

    def __post_init__(self) -> None:
        parse_loop(self.loop)
        for name, value in (("--cache", self.cache), ("--report", self.report)):
            if value is not None and not self.int8:
                raise ValueError(f"{name} is for calibration, which only INT8 needs; add --int8 or leave it away")


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """All that goes into a bundle; `meta` is the checkpoint's, `identifiers` name the rows of the puzzle table,
    `tasks` show what is asked where it has a name.

    `calibration` and `held_out` share no puzzle. `trained` is the same model on the board it was trained on, where that
    is another, of generated puzzles. The threshold of `served.policy` is 0 unless the options give one.
    """

    name: str
    model: hrm.HRM
    served: ServedGraph
    calibration: Questions
    held_out: Questions
    identifiers: Sequence[str]
    tasks: Mapping[str, Any]
    meta: Mapping[str, Any]
    trained: ServedGraph | None = None

    @property
    def num_parameters(self) -> int:
        """Weights that the graph holds; the puzzle table is counted by its rows instead."""
        return sum(tensor.numel() for name, tensor in self.model.state_dict().items() if name != "puzzle_table")

    def provenance(self) -> dict[str, str | int | float]:
        """The plain values of the checkpoint's `meta`, and versions; no path and no time of this machine."""
        plain: dict[str, str | int | float] = {}
        for key, value in self.meta.items():
            is_finite_float = isinstance(value, float) and np.isfinite(value)
            if is_finite_float or (isinstance(value, str | int) and not isinstance(value, bool)):
                plain[key] = value
        modules = (torch, onnx, onnxruntime)
        versions = {f"exported_with_{module.__name__}": str(module.__version__) for module in modules}
        return {**plain, "num_parameters": self.num_parameters, **versions}


def contents_of(options: Options, source: Path, out: Path, stages: progress.Stages) -> Contents:
    """Load, find or make all that goes from the checkpoint `source` to `out`; refuses what does not fit together."""
    atomic.require_free(out)
    model, meta = checkpoint.load(checkpoint.resolve(source))
    trained, own = None, model
    if options.board is not None:
        if model.config.blocks != "relational":
            raise ValueError(f"--board {options.board} asks for another size than {source} has; leave the option away")
        trained = puzzle_of(model.config, meta.get("puzzle"), source)
        is_size = options.board[:1].isdigit()
        other = registry.get(f"{trained.name.partition('-')[0]}-{options.board}" if is_size else options.board)
        model, meta = geometry.on_board(model, other), {**meta, "puzzle": other.name}
    config, puzzle = model.config, puzzle_of(model.config, meta.get("puzzle"), source)
    limit = options.max_segments or config.max_segments
    if config.arch == "transformer" and limit > 1:
        raise ValueError(f"--max-segments {limit} asks a transformer to go on, which it cannot; leave the option away")
    kind = options.policy or ("verified" if puzzle.proof_exists else "learned")
    policy = HaltingPolicy(kind=cast("PolicyKind", kind), threshold=options.threshold or 0.0, max_segments=limit)
    data = data_of(options.data, source, config, puzzle)
    identifiers = identifiers_of(data, config.num_puzzle_ids)
    calibration, held_out = find_puzzles(options, config, puzzle, data, stages)
    model.config = replace(config, max_segments=min(limit, config.max_segments))  # what traces cover
    return Contents(
        name=options.name or out.stem,
        model=model,
        served=served_graph(model, puzzle, policy),
        calibration=calibration,
        held_out=held_out,
        identifiers=identifiers,
        tasks={} if data is None else tasks_of(data, puzzle, identifiers),
        meta={"checkpoint": checkpoint.resolve(source).name, **meta},
        trained=served_graph(own, trained, policy) if trained is not None and trained.difficulties else None,
    )


def served_graph(model: hrm.HRM, puzzle: Puzzle, policy: HaltingPolicy) -> ServedGraph:
    table_PE = model.puzzle_table.float().numpy()
    return ServedGraph(graph=segment_graph(model), puzzle=puzzle, puzzle_table=table_PE, policy=policy)


def find_checkpoint(source: Path | None, calib: str | None) -> Path:
    """The checkpoint that is named, or the best of the run that is named like the calibration's puzzle."""
    if source is not None:
        return source
    if calib is None:
        raise ValueError("no checkpoint is named; give CHECKPOINT, or --calib NAME to take runs/NAME/best")
    source = RUNS / Path(calib).name / BEST
    if not source.exists():
        remedy = f"train first: hrm-train --puzzle {calib}" if calib in registry.names() else "give CHECKPOINT"
        raise ValueError(f"{source}, which --calib {calib} stands for, is not there; {remedy}")
    return source


def bundle_name(source: Path) -> str:
    """The run's name where the checkpoint is one of its own, else the directory's."""
    in_run = source.is_file() or source.name.startswith("step_")
    return (source.resolve().parent if in_run else source).name


def parse_loop(text: str) -> int | None:
    """Segments of the unrolled graph: None for `host`, 0 for `unrolled`, N for `unrolled=N`."""
    form, equals, count = text.partition("=")
    if text == "host":
        return None
    if form != "unrolled" or (equals and not (count.isdecimal() and int(count) > 0)):
        raise ValueError(f"--loop {text} is no form of the loop; give host, unrolled or unrolled=N with N from 1")
    return int(count or 0)


def puzzle_of(config: HRMConfig, name: object, source: Path) -> Puzzle:
    """The puzzle a checkpoint was trained on; refuses one of other sizes."""
    if not isinstance(name, str):
        raise ValueError(f"{source} does not say its puzzle ({name!r}); write it again with hrm-train or hrm-import")
    puzzle = registry.get(name)
    found, expected = (config.seq_len, config.vocab_size), (puzzle.seq_len, puzzle.vocab_size)
    if found != expected:
        raise ValueError(
            f"{source} has {found[0]} positions of {found[1]} tokens but {name} has {expected[0]} of {expected[1]}; "
            "export it with the version of the puzzle it was trained on"
        )
    return puzzle


def data_of(given: Path | None, source: Path, config: HRMConfig, puzzle: Puzzle) -> Path | None:
    """The data set: the one given, or, where its tasks are part of the model, the one that the run says it had."""
    if given is not None or config.num_puzzle_ids == 1:
        return given
    run = source.parent / "run.json"
    stated = json.loads(run.read_text(encoding="utf-8")).get("data") if run.is_file() else None
    if isinstance(stated, str) and Path(stated).is_dir():
        return Path(stated)
    raise ValueError(
        f"the puzzle table has {config.num_puzzle_ids} rows whose names only the data set of its training knows; give "
        f"that with --data (made by hrm-data build {puzzle.name} --out data/{puzzle.name}, or by the published builder)"
    )


def identifiers_of(data: Path | None, num_puzzle_ids: int) -> list[str]:
    """Names of the puzzle table's rows, in its order."""
    names = [BLANK_IDENTIFIER] if data is None else json.loads((data / "identifiers.json").read_text(encoding="utf-8"))
    if len(names) != num_puzzle_ids:
        raise ValueError(f"{data} names {len(names)} puzzles but the table has {num_puzzle_ids} rows; give its own one")
    return names


def tasks_of(data: Path, puzzle: Puzzle, identifiers: Sequence[str]) -> dict[str, Any]:
    """The pairs of each task as it is, none of its variants: those of the training split, and those held out."""
    if not isinstance(puzzle, NamedVariants):
        return {}
    named = {row: name for row, name in enumerate(identifiers) if row and puzzle.variant_of(name)[0] == name}
    tasks: dict[str, Any] = {name: {"train": [], "test": []} for name in named.values()}
    for split_name in ("train", "test"):
        split = open_split(data, split_name)
        rows = np.flatnonzero(np.isin(split.puzzle_ids_N, list(named)))
        for row, *pair_2T in zip(rows.tolist(), split.inputs(rows), split.labels(rows), strict=True):
            question, answer = (puzzle.decode(tokens_T).tolist() for tokens_T in pair_2T)
            tasks[named[int(split.puzzle_ids_N[row])]][split_name].append({"input": question, "output": answer})
    return tasks


def find_puzzles(
    options: Options, config: HRMConfig, puzzle: Puzzle, data: Path | None, stages: progress.Stages
) -> tuple[Questions, Questions]:
    """Puzzles to calibrate with, and others to measure on; fresh ones where no data set or file is named."""
    reserved = min(NUM_CALIBRATION, 4 * options.held_out) if options.fp16 or options.int8 else 0
    questions = find_questions(
        options.calib or (str(data) if data else puzzle.name),
        puzzle,
        count=options.held_out + reserved,
        data=data,
        num_workers=board.num_cores(),
        progress=partial(stages.show, "making puzzles"),
    )
    questions.require_ids(config.num_puzzle_ids)
    order_N = np.random.default_rng(0).permutation(len(questions))
    first = min(reserved, max(len(questions) - options.held_out, len(questions) // 4))
    return questions.at(order_N[:first]), questions.at(order_N[first:])
